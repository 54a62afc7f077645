"""How trainings are started, and what they ask of SLURM."""

import json
import shlex
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pydantic import ValidationError
from snakemake_interface_executor_plugins.utils import format_cli_value

from snakemake_executor_plugin_slurm_steady.checks import misquoted
from snakemake_executor_plugin_slurm_steady.ends import failure
from snaketrain.config.schema import Compute, Settings
from snaketrain.config.sizes import NodeCounts
from snaketrain.launch import slurm_job
from snaketrain.launch.slurm_job import SlurmJob
from snaketrain.launch.slurm_step import NodeSize, Said, StepEnding, Watch, dead_nodes, first_cause, srun_command
from snaketrain.launch.workers import Ending, Restarts
from snaketrain.orchestration import launching
from snaketrain.orchestration.strategy_declarations import evaluation_compute
from snaketrain.slurm.client import NODES_TO_EXCLUDE, Allocation, Slurm, SlurmError, moment_of, refused_for_now


def words(compute: Compute, in_slurm_job: bool = False) -> list[str]:
    return shlex.split(launching.launch(compute, in_slurm_job))


def test_one_process_is_plain_python():
    found = words(Compute(threads=3))
    assert "OMP_NUM_THREADS=3" in found and found[-1].rpartition("/")[2].startswith("python")


def test_processes_of_one_machine_share_its_threads():
    found = words(Compute(processes=2, threads=8))
    assert "OMP_NUM_THREADS=4" in found
    start = next(i for i, word in enumerate(found) if word.endswith("/launch_local.py"))
    assert found[start + 1 :] == ["--restarts", "3", "--", "torchrun", "--nproc-per-node=2"]


@pytest.mark.parametrize("processes", [1, 2])
def test_in_a_slurm_job_all_processes_start_on_its_nodes(processes):
    found = words(Compute(nodes="2", processes=processes, threads=4), in_slurm_job=True)
    start = next(i for i, word in enumerate(found) if word.endswith("/launch_slurm.py"))
    assert found[start + 1 :] == [
        "--nodes",
        "2",
        "--threads",
        "4",
        "--save-before-limit",
        "120",
        "--restarts",
        "3",
        "--",
        "torchrun",
        f"--nproc-per-node={processes}",
    ]


@pytest.mark.parametrize("compute", [{}, {"processes": 2}, {"launcher": "srun"}])
def test_torchrun_binds_processes_to_cores_where_that_is_asked_for(compute):
    from torch.numa.binding import AffinityMode

    assert not any("numa" in word for word in words(Compute(**compute)))
    found = words(Compute(**compute, bind="exclusive"))
    assert found[found.index("--") + 1 :] == ["torchrun", f"--nproc-per-node={compute.get('processes', 1)}", "--numa-binding=exclusive"]
    modes = Compute.model_json_schema()["properties"]["bind"]["enum"]
    assert sorted(modes) == sorted(["none", *(mode.value for mode in AffinityMode)])


@pytest.mark.parametrize(("setting", "value"), [("device", "cpu"), ("launcher", "env")])
def test_what_binds_nothing_to_cores_is_refused_with_it(setting, value):
    with pytest.raises(ValidationError, match=f"`bind` has torchrun bind processes to .*, but `{setting}` is {value}: remove `bind`"):
        Settings.model_validate({"data": {"train": {"use": "a.B"}}, "compute": {setting: value, "bind": "node"}})


def test_torchrun_can_be_chosen_within_a_slurm_job():
    assert words(Compute(processes=2, launcher="torchrun"), in_slurm_job=True) == words(Compute(processes=2))


@pytest.mark.parametrize(("nodes", "told"), [("1", False), ("1-4", False), ("2", True), ("2-4", True)])
def test_several_nodes_need_slurm(nodes, told):
    problem = launching.out_of_reach(Compute(nodes=nodes, threads=4))
    assert bool(problem) is told
    assert not told or (f"compute.nodes: is {nodes}" in problem and "--profile profiles/slurm" in problem)


@pytest.mark.parametrize("launcher", ["torchrun", "env"])
def test_launchers_for_one_machine_refuse_several_nodes(launcher):
    with pytest.raises(ValidationError, match=rf"the `launcher` {launcher} starts processes .*: set `nodes` to 1, or `launcher` to auto"):
        Settings.model_validate(
            {"data": {"train": {"path": "x"}, "tokenizer": {"path": "x"}}, "compute": {"nodes": 2, "launcher": launcher}}
        )


# --- what is asked of SLURM


class Resources(dict):
    __getattr__ = dict.__getitem__


def job_of(compute: Compute, saves: bool = True) -> SimpleNamespace:
    asked = {name: value for name, value in launching.asked(compute, saves).items() if value is not None}
    return SimpleNamespace(resources=Resources(asked), threads=compute.threads, rule=SimpleNamespace(name="train_model"))


def submitted(compute: Compute, saves: bool = True) -> list[str]:
    """The plugin's own command line, after its own checks."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string
    from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

    job = job_of(compute, saves)
    validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(**job.resources)))
    names = {"run_uuid": "x", "slurm_logfile": "log", "comment_str": "x", "account": "", "partition": "-p normal", "workdir": ""}
    return shlex.split(get_submit_command(job, names, SimpleNamespace(requeue=True, qos=None, reservation=None)) + set_gres_string(job))


def last(command: list[str], option: str) -> str:
    """sbatch takes the last one."""
    found = [word.partition("=")[2] or command[i + 1] for i, word in enumerate(command) if word.partition("=")[0] == option]
    return found[-1]


def test_a_training_asks_for_cores_on_each_of_its_nodes():
    found = submitted(Compute(nodes="1-4", processes=4, threads=8, memory_mb=64000, minutes=90, save_before_limit_seconds=300))
    assert "-N1-4" in found
    assert last(found, "--ntasks-per-node") == "8"
    assert found.index("--cpus-per-task=8") < found.index("-c1")
    assert (last(found, "--mem"), last(found, "-t"), last(found, "--signal")) == ("64000", "90", "USR1@300")
    assert {"--requeue", "--open-mode=append"} <= set(found)
    assert not any("gpu" in word for word in found)


@pytest.mark.parametrize(
    ("nodes", "asked", "trains_on", "varies"), [("4", "-N4", [4], False), ("2-4", "-N2-4", [2, 3, 4], True), ("4+1", "-N5", [4], True)]
)
def test_spares_are_asked_for_like_other_nodes(nodes, asked, trains_on, varies):
    compute = Compute(nodes=nodes, threads=4)
    assert asked in submitted(compute)
    assert list(compute.node_counts) == trains_on and compute.counts.varies == varies


def test_an_evaluation_is_not_signalled_before_its_time_limit():
    assert not any(word.startswith("--signal") for word in submitted(Compute(), saves=False))


def test_gpus_are_asked_for_by_node():
    found = submitted(Compute(nodes="2", processes=4, gpus=4))
    assert last(found, "--gres") == "gpu:4"
    assert not any(word.startswith("--ntasks-per-gpu") for word in found)


def test_partition_and_further_options_come_last_and_pass_the_plugins_checks():
    found = submitted(
        Compute(partition="a100", sbatch="--constraint=ib --exclusive --qos fast -A lab --mail-user=me@here --exclude='n[1-3],n7'")
    )
    assert found[-6:] == ["-Cib", "--exclusive", "-qfast", "-Alab", "--mail-user=me@here", "--exclude=n[1-3],n7"]
    assert [word for word in found if word.startswith("-p")] == ["-p", "-pa100"]


@pytest.mark.parametrize(
    ("sbatch", "setting"),
    [
        ("--time=10", "`--time` is set by compute.minutes"),
        ("--exclusive --mem 5G", "compute.memory_mb"),
        ("-p big", "compute.partition"),
        ("-N2", "compute.nodes"),
        ("--part big", "`--partition` is set by compute.partition"),
        ("'--x", "shell"),
        ("--array=1-2", "`--array` cannot be used, since each task of an array would be the whole stage"),
        ("-a1-2", "`-a` cannot be used"),
        ("--arr 1-2", "`--array` cannot be used"),
        ("--job-name=x", "`--job-name` cannot be used, since by it the workflow knows its jobs again"),
        ("--exclusive --wait", "would not submit the job and go on"),
        ("-D /tmp", "the workflow sets it"),
    ],
)
def test_options_that_are_settings_or_of_no_use_are_refused(sbatch, setting):
    with pytest.raises(ValidationError, match=setting):
        Compute(sbatch=sbatch)


@pytest.mark.parametrize(
    "sbatch",
    [
        "--nodelist=n1",
        "--wait-all-nodes=1",
        "--export=ALL,A=1",
        "--gres-flags=enforce-binding",
        "--time-min=5",
        "--no-kill",
        "-C a100",
        "--nice -5",
    ],
)
def test_other_options_are_not_refused(sbatch):
    assert Compute(sbatch=sbatch).sbatch == sbatch


@pytest.mark.parametrize("given", ["my $(touch x) `y`", "train={seed: 1}", 'data={"name": "x"}', "notes='two words'", "ü", Path("it's")])
def test_arguments_that_jobs_receive_literally(given):
    """The text that the plugin puts into a job's script."""
    assert misquoted([given], in_double_quotes=False) == []
    assert shlex.split(format_cli_value(given, quote=True)) == [str(given)]


@pytest.mark.parametrize(
    "given", ["it's $(touch x)", "'a'$(touch x)'b'", '"$(touch x)"', "a\\b", "two\nlines", "it's `x`", """both ' and \\" """]
)
def test_arguments_that_a_job_would_misread_are_refused(given):
    (problem,) = misquoted([given], in_double_quotes=False)
    assert problem.startswith(repr(given)) and "Snakemake cannot pass it to a job" in problem


@pytest.mark.parametrize("given", ["$(touch x)", "`x`", "$HOME", Path("a b $(touch x)")])
def test_where_the_command_is_an_argument_of_sbatch_its_shell_would_execute_it(given):
    (problem,) = misquoted([given], in_double_quotes=True)
    assert "slurm-steady-pass-command-as-script: true" in problem
    assert misquoted([given], in_double_quotes=False) == []


def test_the_profile_hands_over_a_script():
    profile = yaml.safe_load((Path(__file__).parents[2] / "profiles/slurm/config.yaml").read_text())
    assert profile["slurm-steady-pass-command-as-script"] is True


# --- inside of a job


def command_of(job: Allocation, size: NodeSize | None = None, words: tuple[str, ...] = ("train model.py",)) -> list[str]:
    return srun_command(job, list(job.hosts), size or NodeSize(processes=2, threads=4), "a1:2345", list(words))


def test_one_agent_on_each_node_that_the_job_was_given():
    found = command_of(Allocation("7", 0, ("a1", "a2", "a3")))
    assert found[0] == "srun"
    assert found[found.index("--nodes") + 1] == found[found.index("--ntasks") + 1] == "3"
    assert found[found.index("--cpus-per-task") + 1] == "4"
    assert "--gpus-per-node" not in found
    options = found[next(i for i, word in enumerate(found) if word.endswith("/torchrun")) + 1 :]
    assert options[:2] == ["--nnodes=3", "--nproc-per-node=2"] and options[-1] == "train model.py"
    assert {"--rdzv-backend=snaketrain", "--rdzv-endpoint=a1:2345", "--rdzv-conf=gpus=2"} <= set(options)


def test_each_step_asks_for_all_gpus_of_its_job():
    found = command_of(Allocation("7", 0, ("a1",), gpus=4), NodeSize(4, 8, cpu=False, interface="ib0"))
    assert found[found.index("--gpus-per-node") + 1] == "4"
    assert "--rdzv-conf=gpus=4,interface=ib0" in found


def test_arguments_of_the_script_are_not_read_by_a_shell():
    words = ('-it\'s "$(touch PWNED)" `touch PWNED` {x} \\n & ; | > x * ~ $HOME\nsecond line', "--notes=$(touch PWNED)", "ü")
    assert tuple(command_of(Allocation("7", 0, ("a1",)), words=words)[-3:]) == words


# --- when the step has failed


@pytest.fixture
def slurm(tmp_path, monkeypatch, programs):
    """scontrol and srun for a job on a1 to a3, of which those in the file `lost` do not answer; they record changes."""
    (tmp_path / "restarts").write_text("2")
    (tmp_path / "lost").write_text("")
    (tmp_path / "times").write_text("StartTime=2026-11-23T02:00:00 PreemptEligibleTime=2026-11-23T02:00:00 PreemptTime=None")
    scontrol = (
        'case "$1 $2" in "show job") echo "JobId=7 UserId=me Restarts=$(cat $HERE/restarts) ExcNodeList=b[1-2] NodeList=a[1-3] BatchHost=a1 '
        '$(cat $HERE/times)";; '
        '"show hostnames") case $3 in "a[1-3]") printf "a1\\na2\\na3\\n";; *) printf "b1\\nb2\\n";; esac;; *) echo "$@" >> $HERE/changed;; esac'
    )
    programs(scontrol=scontrol, srun='while [ "$1" != --nodelist ]; do shift; done; ! grep -qx "$2" $HERE/lost')
    monkeypatch.setattr(slurm_job, "SECONDS_UNTIL_ENDED", 0.1)  # SLURM ends it at once when it was requeued
    return tmp_path


@pytest.fixture
def job(slurm) -> SlurmJob:
    restarts = Restarts(slurm, 3, 0.01, lambda message: None)
    return SlurmJob(Slurm(), "7", slurm, NodeCounts.of("2-3"), NodeSize(2, 4), restarts, silence_seconds=60)


def changed(folder: Path) -> list[str]:
    return (folder / "changed").read_text().splitlines() if (folder / "changed").exists() else []


LOST = StepEnding(Ending(137, "rank 2 was killed by SIGKILL on a2"))


def test_a_job_knows_its_nodes_and_how_often_it_was_started(job):
    assert job.job == Allocation("7", 2, ("a1", "a2", "a3"), script_host="a1")


@pytest.mark.parametrize(("here", "replaced"), [("a1", False), ("b1", True), ("", False)])
def test_a_start_on_a_node_that_was_cut_off_stops_training(slurm, capsys, monkeypatch, here, replaced):
    """It waits for its end: if it failed, Snakemake would delete the results of the start that has replaced it."""
    steps = []
    monkeypatch.setattr("snaketrain.launch.slurm_job.Step.run", lambda *_: steps.append(1) or StepEnding(Ending(0)))
    found = SlurmJob(Slurm(), "7", slurm, NodeCounts.of("3"), NodeSize(2, 4), Restarts(slurm, 3, 0.01, print), 60, here)
    assert (found.train([]), len(steps)) == ((1, 0) if replaced else (0, 1))
    assert ("SLURM has already restarted it on a1" in capsys.readouterr().out) is replaced


def test_a_start_whose_job_was_requeued_stops_training(slurm, capsys, monkeypatch):
    monkeypatch.setattr(Slurm, "allocation", lambda self, number: Allocation(number, 2, ()))
    found = SlurmJob(Slurm(), "7", slurm, NodeCounts.of("3"), NodeSize(2, 4), Restarts(slurm, 3, 0.01, print), 60, "a1")
    assert found.train([]) == 1
    assert "SLURM has already requeued it" in capsys.readouterr().out


def test_a_controller_that_does_not_answer_at_the_start_is_asked_again(job, monkeypatch):
    answers = iter([SlurmError("away"), SlurmError("away"), Allocation("7", 2, ("a1",))])

    def allocation(number):
        if isinstance(answer := next(answers), SlurmError):
            raise answer
        return answer

    monkeypatch.setattr(slurm_job, "SECONDS_BETWEEN_QUESTIONS", 0.01)
    monkeypatch.setattr(job.slurm, "allocation", allocation)
    assert job.allocation("7").hosts == ("a1",)


def test_a_saved_training_out_of_time_is_requeued(job, slurm):
    (slurm / "checkpoints/step-40").mkdir(parents=True)
    assert job.exit_code(StepEnding(Ending(138)), ["SIGUSR1"]) == 138
    assert changed(slurm) == ["requeue 7"]


def test_a_training_whose_time_runs_out_before_a_step_is_not_requeued(job, slurm, capsys):
    """It would be requeued for ever."""
    (slurm / "checkpoints/step-40").mkdir(parents=True)
    job.saved_before = 40
    assert job.exit_code(StepEnding(Ending(138)), ["SIGUSR1"]) == 138
    assert changed(slurm) == []
    assert (
        "its time ran out before it took a step after 40; another start would end the same way: raise compute.minutes"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("ended", [True, False], ids=["the request arrived", "refused"])
def test_scontrol_may_be_ended_by_its_own_request(job, slurm, monkeypatch, capsys, ended):
    (slurm / "checkpoints/step-40").mkdir(parents=True)

    def requeue(number: str) -> None:
        job.signals += [signal.SIGTERM] if ended else []
        raise SlurmError("scontrol requeue 7 failed: ")

    monkeypatch.setattr(job.slurm, "requeue", requeue)
    assert job.exit_code(StepEnding(Ending(138)), ["SIGUSR1"]) == 138
    told = "; requeued" if ended else ", but it cannot be requeued: scontrol requeue 7 failed: "
    assert capsys.readouterr().out == f"job 7: its time ran out; saved{told}\n"


def test_a_failing_script_is_neither_restarted_nor_requeued(job, slurm):
    assert job.exit_code(StepEnding(Ending(1)), []) == 1
    assert job.exit_code(StepEnding(Ending(143)), ["SIGTERM"]) == 75
    assert changed(slurm) == []


def test_a_lost_process_is_restarted_on_the_same_nodes(job, slurm):
    assert job.exit_code(LOST, []) is None
    assert job.usable() == ["a1", "a2", "a3"] and changed(slurm) == []


def test_nothing_is_restarted_when_slurm_ends_the_job(job, slurm):
    job.signals.append(15)
    assert job.exit_code(LOST, []) == 137
    assert changed(slurm) == []


def test_a_dead_node_is_given_up_before_slurm_ends_the_job_for_it(job, slurm):
    assert job.exit_code(StepEnding(Ending(1, "a2 does not answer"), dead=["a2"]), []) is None
    assert job.usable() == ["a1", "a3"] and changed(slurm) == ["update JobId=7 NodeList=a1,a3"]


def test_with_too_few_nodes_left_the_job_is_requeued_without_the_bad_ones(job, slurm, capsys):
    bad = StepEnding(Ending(76, "1 of 2 GPUs no longer answer on a1"), dead=["a2"], unfit=["a1"])
    assert job.exit_code(bad, []) == 76
    assert changed(slurm) == ["update JobId=7 NodeList=a1,a3", "requeue 7"]
    assert json.loads((slurm / NODES_TO_EXCLUDE).read_text()) == {"job": "7", "nodes": ["a1", "a2"]}
    assert "1 of 3 nodes left, fewer than 2" in capsys.readouterr().out


def test_a_users_own_exclusions_stay(slurm):
    Slurm().exclude("7", ["a2"])
    assert changed(slurm) == ["update JobId=7 ExcNodeList=a2,b1,b2"]


@pytest.mark.parametrize(
    ("preempted", "requests"), [("2026-11-23T02:10:00", ["requeue 7"]), ("2026-11-23T01:59:59", [])], ids=["now", "in an earlier start"]
)
@pytest.mark.parametrize("sent", ["SIGTERM", "SIGUSR1"])
def test_a_training_that_ends_within_the_grace_time_is_requeued(job, slurm, preempted, requests, sent):
    """With PreemptParameters=send_user_signal SLURM sends the signal that --signal asked for, before a step may have been saved."""
    (slurm / "times").write_text(f"StartTime=2026-11-23T02:00:00 PreemptEligibleTime=2026-11-23T02:00:00 PreemptTime={preempted}")
    job.exit_code(StepEnding(Ending(143)), [sent])
    assert changed(slurm) == requests


@pytest.mark.parametrize(
    ("seconds_left", "saved", "requests"),
    [(170, True, ["requeue 7"]), (-10, True, ["requeue 7"]), (170, False, []), (600, True, [])],
    ids=["little time", "no time", "little time, and nothing saved", "much time"],
)
def test_a_training_whose_time_runs_out_in_the_pause_before_a_restart_is_requeued(job, slurm, seconds_left, saved, requests):
    """SLURM signals only running processes, and there are none during a pause: the next ones would train until they are killed."""
    job.save_before_limit = 120
    end = datetime.now() + timedelta(seconds=seconds_left)
    (slurm / "times").write_text(f"StartTime=2026-11-23T02:00:00 EndTime={end.isoformat(timespec='seconds')}")
    if saved:
        (slurm / "checkpoints/step-00000010").mkdir(parents=True)
    assert job.exit_code(LOST, []) == (137 if requests else None)
    assert changed(slurm) == requests


@pytest.mark.parametrize("saved", [True, False])
def test_a_training_whose_time_runs_out_while_its_processes_start_is_requeued(job, slurm, saved):
    """They cannot save yet, so the signal kills them."""
    if saved:
        (slurm / "checkpoints/step-00000010").mkdir(parents=True)
    assert job.exit_code(StepEnding(Ending(138)), []) == 138
    assert changed(slurm) == (["requeue 7"] if saved else [])


@pytest.mark.parametrize(("shown", "found"), [("Unknown", None), ("", None), ("1970-01-02T00:00:00", 86400.0)])
def test_the_end_of_a_jobs_time(monkeypatch, shown, found):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert moment_of(shown) == found


def test_a_start_that_was_cut_off_does_not_end_the_next_one(job, slurm, capsys):
    (slurm / "restarts").write_text("3")
    assert job.requeue(1, "a2 does not answer") == 1
    assert job.exit_code(LOST, []) == 137
    assert changed(slurm) == []
    assert "SLURM has already restarted it elsewhere" in capsys.readouterr().out


# --- nodes that are unfit before the start, and what SLURM refuses for now


@pytest.fixture
def steps(monkeypatch):
    """The nodes of each start; `unfit` are found so before each, and `endings` are those of the starts, of which the last one succeeds."""
    found = SimpleNamespace(hosts=[], unfit={}, endings=[])

    def run(step, command, start):
        found.hosts.append(step.hosts)
        return found.endings.pop(0) if found.endings else StepEnding(Ending(0))

    monkeypatch.setattr(slurm_job.Step, "run", run)
    monkeypatch.setattr(
        slurm_job, "unfit_nodes", lambda slurm, number, hosts, *_: {host: found.unfit[host] for host in hosts if host in found.unfit}
    )
    monkeypatch.setattr(slurm_job, "SECONDS_BETWEEN_QUESTIONS", 0.01)
    return found


def test_an_unfit_node_is_left_out_before_the_start(job, slurm, steps, capsys):
    steps.unfit = {"a3": "has no Python at /venv/bin/python"}
    assert job.train([]) == 0 and steps.hosts == [["a1", "a2"]] and changed(slurm) == []
    assert "job 7: a3 has no Python at /venv/bin/python; it is left out" in capsys.readouterr().out


def test_a_job_with_too_few_fit_nodes_is_requeued_once_for_them(job, slurm, steps, capsys):
    """If nobody has excluded them meanwhile, it would be given them again and again."""
    steps.unfit = {"a2": "has no Python", "a3": "has no Python"}
    assert job.train([]) == 1 and steps.hosts == [] and changed(slurm) == ["requeue 7"]
    assert json.loads((slurm / NODES_TO_EXCLUDE).read_text()) == {"job": "7", "nodes": ["a2", "a3"]}
    assert "1 of 3 nodes left, fewer than 2; requeued, to start without a2, a3" in capsys.readouterr().out
    assert job.train([]) == 1 and changed(slurm) == ["requeue 7"]
    assert "a2, a3 failed it before, and nobody has excluded them; giving up" in capsys.readouterr().out


def test_nothing_is_started_if_the_job_is_ended_while_its_nodes_are_checked(job, steps, monkeypatch):
    monkeypatch.setattr(slurm_job, "unfit_nodes", lambda *_: job.signals.append(signal.SIGTERM) or {})
    assert job.train([]) == 143 and steps.hosts == []


MEMORY = "Memory required by task is not available"


def test_what_slurm_refuses_for_now_is_no_restart(job, slurm, steps, capsys):
    """As in the first seconds of a controller that was away, which does not know its nodes yet."""
    steps.endings = [StepEnding(Ending(1), refused=MEMORY)] * 9
    assert job.train([]) == 0 and len(steps.hosts) == 10 and job.restarts.without_progress == 0
    assert capsys.readouterr().out.count("SLURM lets it start nothing yet") == 1


@pytest.mark.parametrize(("why", "code"), [(MEMORY, 1), ("Unable to contact slurm controller (connect failure)", 0)])
def test_slurm_is_not_asked_for_ever(job, steps, monkeypatch, why, code):
    """Unless it is away, during which nothing else could be done."""
    now = [0.0]
    monkeypatch.setattr(slurm_job.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(SlurmJob, "wait", lambda self, seconds: now.__setitem__(0, now[0] + 100))
    steps.endings = [StepEnding(Ending(1), refused=why)] * 40
    assert job.train([]) == code
    assert len(steps.hosts) == (20 if code else 41)


def test_a_refused_step_does_not_say_that_a_node_is_dead(slurm, programs):
    job = Allocation("7", 0, ("a1", "a2"))
    srun = f'case "$*" in *a2*) echo "srun: error: Unable to create step for job 7: {MEMORY}" >&2; exit 1;; esac'
    programs(srun=srun)
    assert dead_nodes(Slurm(), job, ["a2"]) is None
    programs(srun=srun.replace(MEMORY, "Required node not available (down, drained or reserved)"))
    assert dead_nodes(Slurm(), job, ["a2"]) == ["a2"]


def said(*lines: str) -> Said:
    script = "import sys; sys.stderr.write(sys.argv[1])"
    found = Said(subprocess.Popen([sys.executable, "-c", script, "\n".join(lines) + "\n"], stderr=subprocess.PIPE))
    found.finish()
    return found


def test_srun_tells_which_node_was_the_first_to_fail(slurm, capfdbinary):
    """The other one is ended for it."""
    lines = [
        " 5% of a bar\rslurmstepd-b2: error: execve(): /venv/bin/python: No such file or directory",
        "srun: error: b2: task 1: Exited with exit code 2",
        "srun: error: a[1-3]: tasks 2-4: Exited with exit code 1",
        "srun: error: b1: task 0: Killed",
    ]
    found = said(*lines).endings(Slurm())
    assert found == {"b2": "execve(): /venv/bin/python: No such file or directory"} | dict.fromkeys(
        ("a1", "a2", "a3"), "Exited with exit code 1"
    )
    assert capfdbinary.readouterr().err.decode().splitlines() == "\n".join(lines).splitlines(), "and passed on"
    ending = first_cause(2, {}, ["b1", "b2"], [], {"b2": found["b2"]})
    assert ending == Ending(2, "b2 ended without a report (execve(): /venv/bin/python: No such file or directory)")


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        (f"srun: error: Unable to create step for job 7: {MEMORY}", MEMORY),
        ("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", "Requested nodes are busy"),
        (
            "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)",
            "Unable to contact slurm controller (connect failure)",
        ),
        ("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\nsrun: Step created for job 7", None),
        ("srun: error: Unable to create step for job 7: Job/step already completing or completed", None),
        ("srun: error: Task launch for StepId=7.1 failed on node a2: Communication connection failure", None),
    ],
)
def test_what_slurm_may_do_later(line, refused):
    assert refused_for_now(f"srun: something\n{line}\nsrun: more") == refused


def test_silent_nodes_are_probed_all_at_once(slurm, programs):
    programs(srun="echo $$ > $HERE/asking-$$; sleep 1; ls $HERE | grep -c asking > $HERE/most; exit 1")
    assert Slurm().silent_nodes("7", ["a1", "a2", "a3"]) == ["a1", "a2", "a3"]
    assert (slurm / "most").read_text() == "3\n"


def test_no_node_is_dead_if_slurm_does_not_answer(slurm):
    job = Allocation("7", 0, ("a1", "a2", "a3"))
    (slurm / "lost").write_text("a2\n")
    assert dead_nodes(Slurm(), job, ["a2", "a3"]) == ["a2"]
    (slurm / "lost").write_text("a1\na2\na3\n")
    assert dead_nodes(Slurm(), job, ["a2", "a3"]) is None


SAID, KILLED = Ending(1), Ending(137, "rank 2 was killed by SIGKILL")
EATEN = Ending(137, memory_kill="the kernel killed 1 process of this job on a2 for memory (limit 4000 MB)")


def test_a_memory_kill_is_named_and_not_restarted(job, slurm, capsys):
    """With as much memory it would be killed again."""
    assert job.exit_code(StepEnding(EATEN), []) == 137
    assert changed(slurm) == []
    log = slurm / "7.log"
    log.write_text(capsys.readouterr().out)
    assert log.read_text() == f"job 7: out of memory: {EATEN.memory_kill}\n"
    found = failure(Slurm(), "7", "FAILED", log)
    assert EATEN.memory_kill in found.what and not found.worth_retrying


@pytest.mark.parametrize(
    ("endings", "silent", "dead", "expected"),
    [
        ({"a1": SAID, "a2": KILLED}, [], [], Ending(137, "rank 2 was killed by SIGKILL on a2")),
        ({"a1": KILLED, "a2": EATEN}, [], [], EATEN),
        ({"a1": SAID}, ["a2"], ["a2"], Ending(137, "a2 does not answer")),
        ({"a1": SAID}, ["a2"], [], Ending(137, "the processes on a2 ended without a report (srun: exit code 137)")),
        ({"a1": SAID}, [], [], SAID),
        ({"a1": Ending(75), "a2": Ending(75)}, [], [], Ending(75)),
        ({"a1": Ending(143), "a2": Ending(143)}, [], [], Ending(143, "SIGTERM ended the step, but not the job")),
        ({"a1": Ending(143), "a2": Ending(75)}, [], [], Ending(143)),  # one agent only, by hand: its ranks had all others stop
        ({"a1": Ending(143)}, ["a2"], [], Ending(137, "the processes on a2 ended without a report (srun: exit code 137)")),
        ({}, [], [], Ending(137)),
    ],
)
def test_why_a_step_ended(endings, silent, dead, expected):
    assert first_cause(137, endings, silent, dead) == expected


def test_a_setup_that_failed_is_not_restarted():
    assert first_cause(78, {}, ["a1", "a2"], []) == Ending(78)


class Heard:
    def __init__(self) -> None:
        self.given = {"a1": b"1", "a2": b"1"}
        self.reports: dict[str, Ending] = {}

    def heartbeats(self, hosts):
        return dict(self.given)

    def has_failed(self):
        return bool(self.reports)

    def endings(self, hosts):
        return dict(self.reports)


def test_a_node_is_silent_without_heartbeats_unless_this_process_was_suspended():
    server = Heard()
    watch = Watch(server, ["a1", "a2", "a3"], silence_seconds=6)
    now = watch.checked = 1000.0  # seconds are added to it without rounding
    assert watch.silent(now) == []
    for second in range(1, 8):
        server.given["a1"] = str(second).encode()
        found = watch.silent(now + second)
    assert found == ["a2"] and watch.silent(now + 8) == []  # probed again after another silence
    assert watch.silent(now + 1000) == []  # suspended


def test_a_silent_node_is_probed_sooner_when_the_processes_of_another_have_failed():
    """Those of a node that crashed are missed by their peers at once; a node that has reported is silent as well."""
    server = Heard()
    watch = Watch(server, ["a1", "a2", "a3"], silence_seconds=60)
    now = watch.checked = 1000.0
    server.reports["a1"] = Ending(1)
    found = []
    for second in range(12):
        server.given["a3"] = str(second).encode()
        found += watch.silent(now + second)
    assert found == ["a2"]


def test_a_node_that_dies_after_its_report_is_probed_as_well():
    """srun waits for it until SLURM itself notices."""
    server = Heard()
    watch = Watch(server, ["a1", "a2"], silence_seconds=60)
    now = watch.checked = 1000.0  # seconds are added to it without rounding
    watch.silent(now)
    server.reports = {"a1": Ending(143), "a2": Ending(143)}
    found = {second: watch.silent(now + second) for second in range(1, 65)}
    assert {second: silent for second, silent in found.items() if silent} == {61: ["a1", "a2"]}


@pytest.mark.parametrize(
    ("compute", "strategy", "executor", "gres", "told"),
    [
        ({"device": "cuda"}, "auto", "slurm-steady", None, "compute.device: is cuda, which needs GPUs, but compute.gpus is 0"),
        ({"device": "cuda", "gpus": 1}, "auto", "slurm-steady", "gpu:1", None),
        ({"device": "cuda", "sbatch": "--gpus-per-node=2"}, "auto", "slurm-steady", None, None),
        ({"device": "cuda", "sbatch": "--exclusive"}, "auto", "slurm-steady", None, None),
        ({}, "fairscale_fsdp", "slurm-steady", None, "train.strategy: `fairscale_fsdp` needs GPUs, but compute.gpus is 0"),
        ({}, "ddp", "slurm-steady", None, None),
        ({"device": "cuda"}, "auto", "local", None, "compute.device: is cuda, which needs GPUs, but this machine has none"),
        ({"device": "cuda"}, "auto", "cluster-generic", None, None),
        ({"bind": "node"}, "auto", "local", None, "compute.bind: is node, which needs GPUs, but this machine has none"),
        ({"gpus": 1}, "auto", "local", None, "compute.gpus: is 1, which needs GPUs, but this machine has none"),
    ],
)
def test_missing_gpus_are_reported_before_any_job(monkeypatch, compute, strategy, executor, gres, told):
    monkeypatch.setattr(launching, "GPU_DEVICES", ("/dev/no_such_device*",))
    run = Settings.model_validate({"data": {"train": {"use": "a.B"}}, "compute": compute, "train": {"strategy": strategy}})
    found = launching.without_gpus(run.train.strategy.use, run.compute, executor, gres)
    assert found is None if told is None else found.startswith(told)


def test_an_evaluation_without_gpus_is_not_refused_for_those_of_its_training():
    compute = {"gpus": 2, "processes": 2, "evaluation": {"gpus": 0}}
    size = evaluation_compute(Settings.model_validate({"data": {"train": {"use": "a.B"}}, "compute": compute}))
    gres = launching.asked(size, saves=False)["gres"]
    assert gres is None and launching.without_gpus("ddp", size, "slurm-steady", gres) is None
