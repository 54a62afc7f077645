"""How trainings are started, and what they ask of SLURM."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pydantic import ValidationError
from snakemake_interface_executor_plugins.utils import format_cli_value

import launch_slurm
from snaketrain.config.schema import Compute, Settings
from snaketrain.orchestration import launching
from snaketrain.runtime.run_folder import end_of_journal
from snaketrain.slurm.client import Allocation, Slurm

TORCHRUN = ["--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "--shutdown-timeout", "600"]


def words(compute: Compute, in_slurm_job: bool = False) -> list[str]:
    return shlex.split(launching.launch(compute, in_slurm_job))


def test_one_process_is_plain_python():
    found = words(Compute(threads=3))
    assert "OMP_NUM_THREADS=3" in found and found[-1].rpartition("/")[2].startswith("python")


def test_processes_of_one_machine_share_its_threads():
    found = words(Compute(processes=2, threads=8))
    assert "OMP_NUM_THREADS=4" in found
    start = next(i for i, word in enumerate(found) if word.endswith("/launch_local.py"))
    assert found[start + 1 :] == ["--processes", "2", "--restarts", "3", "--"]


@pytest.mark.parametrize("processes", [1, 2])
def test_in_a_slurm_job_all_start_on_its_nodes(processes):
    found = words(Compute(nodes="2", processes=processes, threads=4), in_slurm_job=True)
    assert found[-6:] == [found[-6], "--processes", str(processes), "--threads", "4", "--"]
    assert found[-6].endswith("/launch_slurm.py")


def test_torchrun_can_be_chosen_within_a_slurm_job():
    assert words(Compute(processes=2, launcher="torchrun"), in_slurm_job=True) == words(Compute(processes=2))


@pytest.mark.parametrize(("nodes", "told"), [("1", False), ("1-4", False), ("2", True), ("2-4", True)])
def test_several_nodes_need_slurm(nodes, told):
    problem = launching.out_of_reach(Compute(nodes=nodes, threads=4))
    assert bool(problem) is told
    assert not told or (f"compute.nodes: is {nodes}" in problem and "--profile profiles/slurm" in problem)


@pytest.mark.parametrize("launcher", ["torchrun", "env"])
def test_launchers_of_one_machine_are_no_launchers_of_several_nodes(launcher):
    with pytest.raises(
        ValidationError, match=rf"compute.launcher `{launcher}` starts processes on .*: set compute.nodes: 1, or launcher: auto"
    ):
        Settings.model_validate(
            {"data": {"train": {"path": "x"}, "tokenizer": {"path": "x"}}, "compute": {"nodes": 2, "launcher": launcher}}
        )


# --- what is asked of SLURM


def submitted(compute: Compute, saves: bool = True) -> list[str]:
    """The plugin's own command line, after its own checks."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string
    from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

    class Resources(dict):
        __getattr__ = dict.__getitem__

    asked = {name: value for name, value in launching.asked(compute, saves).items() if value is not None}
    job = SimpleNamespace(resources=Resources(asked), threads=compute.threads, rule=SimpleNamespace(name="train_model"))
    validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(**asked)))
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


def test_an_evaluation_is_not_told_that_its_time_runs_out():
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
    [("--time=10", "compute.minutes"), ("--exclusive --mem 5G", "compute.memory_mb"), ("-p big", "compute.partition"), ("'--x", "shell")],
)
def test_options_that_are_settings_are_refused(sbatch, setting):
    with pytest.raises(ValidationError, match=setting):
        Compute(sbatch=sbatch)


@pytest.mark.parametrize("given", ["my $(touch x) `y`", "train={seed: 1}", 'data={"name": "x"}', "notes='two words'", "ü", Path("it's")])
def test_what_jobs_are_handed_as_it_is(given):
    """The very text that the plugin puts into a job's script."""
    assert launching.misquoted([given], in_double_quotes=False) == []
    assert shlex.split(format_cli_value(given, quote=True)) == [str(given)]


@pytest.mark.parametrize(
    "given", ["it's $(touch x)", "'a'$(touch x)'b'", '"$(touch x)"', "a\\b", "two\nlines", "it's `x`", """both ' and \\" """]
)
def test_what_a_job_would_read_otherwise_is_refused(given):
    (problem,) = launching.misquoted([given], in_double_quotes=False)
    assert problem.startswith(repr(given)) and "Snakemake cannot hand it to a job" in problem


@pytest.mark.parametrize("given", ["$(touch x)", "`x`", "$HOME", Path("a b $(touch x)")])
def test_where_the_command_is_an_argument_of_sbatch_its_shell_would_execute_it(given):
    (problem,) = launching.misquoted([given], in_double_quotes=True)
    assert "slurm-pass-command-as-script: true" in problem
    assert launching.misquoted([given], in_double_quotes=False) == []


def test_the_profile_hands_over_a_script():
    profile = yaml.safe_load((Path(__file__).parents[2] / "profiles/slurm/config.yaml").read_text())
    assert profile["slurm-pass-command-as-script"] is True


# --- inside of a job


def command_of(job: Allocation, processes: int = 2) -> list[str]:
    return launch_slurm.step(argparse.Namespace(processes=processes, threads=4), job, ["train model.py", "--output", "f/manifest.json"])


def port(job: Allocation) -> int:
    return int(re.search(r":(\d+) ", command_of(job)[-1])[1])


def test_one_torchrun_on_each_node_that_the_job_was_given():
    found = command_of(Allocation("7", 0, ("a1", "a2", "a3")))
    assert found[0] == "srun"
    assert found[found.index("--nodes") + 1] == found[found.index("--ntasks") + 1] == "3"
    assert found[found.index("--cpus-per-task") + 1] == "4"
    assert found[-3:-1] == ["bash", "-c"]
    assert "--nnodes 3 --nproc-per-node 2" in found[-1] and "--rdzv-endpoint a1:" in found[-1]
    assert found[-1].endswith("'train model.py' --output f/manifest.json")


def test_each_start_of_a_job_meets_at_a_place_of_its_own():
    starts = [Allocation("7", 0, ("a1",)), Allocation("7", 1, ("a1",)), Allocation("8", 0, ("a1",))]
    assert len({port(job) for job in starts}) == len({re.search(r"--rdzv-id (\S+)", command_of(job)[-1])[1] for job in starts}) == 3
    assert all(
        20000 <= port(Allocation(str(number), restarts, ("a1",))) < 32000 for number in (1, 99999, 12345678) for restarts in (0, 1, 500)
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_shell_of_each_node_executes_nothing_of_what_the_script_is_given(tmp_path):
    words = ['-it\'s "$(touch PWNED)" `touch PWNED` {x} \\n & ; | > x * ~ $HOME\nsecond line', "--notes=$(touch PWNED)", "ü"]
    job = Allocation("7", 0, ("a1",))
    script = launch_slurm.step(argparse.Namespace(processes=1, threads=1), job, words)[-1]
    script = script.replace(f"exec {shlex.quote(launching.torchrun()[0])}", "printf '%s\\0'")
    environment = {"SLURM_NODEID": "0", "SLURMD_NODENAME": "a1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[-4:-1] == words
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_shell_of_each_node_fills_in_its_own_number(tmp_path):
    script = (
        command_of(Allocation("7", 0, ("a1", "a2")))[-1]
        .replace(shlex.quote(launching.torchrun()[0]), "printf '%s\\n'")
        .replace("exec ", "")
    )
    done = {}
    for node in (0, 1):
        environment = {"SLURM_NODEID": str(node), "SLURMD_NODENAME": f"a{node + 1}", "PATH": "/usr/bin:/bin"}
        done[node] = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "is_host=1,join_timeout=600" in done[0] and "is_host=0,join_timeout=600" in done[1]
    assert done[1][done[1].index("--local-addr") + 1] == "a2"


# --- when the step has failed


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """scontrol and srun of a job on a1 and a2, of which those in the file `lost` do not answer; what was queued again is written down."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "restarts").write_text("2")
    (tmp_path / "lost").write_text("")
    scontrol = (
        'case "$1 $2" in "show job") echo "JobId=7 UserId=me Restarts=$(cat $HERE/restarts) NodeList=a[1-2] BatchHost=a1";; '
        '"show hostnames") printf "a1\\na2\\n";; "requeue 7") echo 7 >> $HERE/requeued;; esac'
    )
    srun = 'while [ "$1" != --nodelist ]; do shift; done; ! grep -qx "$2" $HERE/lost'
    for name, script in {"scontrol": scontrol, "srun": srun}.items():
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n" + script.replace("$HERE", str(tmp_path)) + "\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(launch_slurm, "signals", [15])  # SLURM ends it at once when it was queued again
    return tmp_path


def journal(folder, *lines):
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


STOPPED = {"event": "end", "status": "STOPPED", "step": 5, "signals": ["SIGUSR1"]}


def test_a_job_knows_its_nodes_and_how_often_it_was_started(slurm):
    assert Slurm().allocation("7") == Allocation("7", 2, ("a1", "a2"))


def test_out_of_time_and_saved_is_queued_again(slurm):
    journal(slurm, {"event": "attempt"}, STOPPED)
    assert launch_slurm.why_requeue(Slurm(), Slurm().allocation("7"), slurm, 0) == "its time ran out; saved"
    launch_slurm.requeue(Slurm(), Slurm().allocation("7"), "its time ran out; saved")
    assert (slurm / "requeued").read_text() == "7\n"


def test_an_earlier_start_that_ran_out_of_time_excuses_nothing(slurm):
    """Else a training that fails at each start would be queued again for ever."""
    journal(slurm, {"event": "attempt"}, STOPPED)
    assert launch_slurm.why_requeue(Slurm(), Slurm().allocation("7"), slurm, end_of_journal(slurm)) is None


def test_a_node_that_does_not_answer_is_a_reason(slurm):
    (slurm / "lost").write_text("a2\n")
    assert launch_slurm.why_requeue(Slurm(), Slurm().allocation("7"), slurm, 0) == "a2 does not answer; resuming from the last checkpoint"


def test_a_script_that_fails_by_itself_is_not_queued_again(slurm):
    journal(slurm, {"event": "attempt"}, {"event": "end", "status": "FAILED"})
    assert launch_slurm.why_requeue(Slurm(), Slurm().allocation("7"), slurm, 0) is None


def test_a_start_that_was_cut_off_does_not_end_the_next_one(slurm, capsys):
    before = Slurm().allocation("7")
    (slurm / "restarts").write_text("3")
    launch_slurm.requeue(Slurm(), before, "a2 does not answer")
    assert not (slurm / "requeued").exists()
    assert "SLURM has already restarted it elsewhere" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("compute", "strategy", "executor", "gres", "told"),
    [
        ({"device": "cuda"}, "auto", "slurm", None, "compute.device: is cuda, which needs GPUs, but compute.gpus is 0"),
        ({"device": "cuda", "gpus": 1}, "auto", "slurm", "gpu:1", None),
        ({"device": "cuda", "sbatch": "--gpus-per-node=2"}, "auto", "slurm", None, None),
        ({}, "fairscale_fsdp", "slurm", None, "train.strategy: `fairscale_fsdp` needs GPUs, but compute.gpus is 0"),
        ({}, "ddp", "slurm", None, None),
        ({"device": "cuda"}, "auto", "local", None, "compute.device: is cuda, which needs GPUs, and this machine has none"),
        ({"device": "cuda"}, "auto", "cluster-generic", None, None),
        ({"gpus": 1}, "auto", "local", None, "compute.gpus: is 1, which needs GPUs, and this machine has none"),
    ],
)
def test_what_needs_gpus_is_told_where_there_will_be_none(monkeypatch, compute, strategy, executor, gres, told):
    monkeypatch.setattr(launching, "GPU_DEVICES", ("/dev/no_such_device*",))
    run = Settings.model_validate({"data": {"train": {"use": "a.B"}}, "compute": compute, "train": {"strategy": strategy}})
    found = launching.without_gpus(run, executor, gres)
    assert found is None if told is None else found.startswith(told)
