"""One module runs SLURM's programs: one query for many jobs, an answer that is cached for a while, one kind of error."""

import ast
import threading
import time
from pathlib import Path

import pytest

from snaketrain.slurm import client
from snaketrain.slurm.client import Allocation, Slurm, SlurmError, gpus_of
from snaketrain.slurm.jobs import QueuedJob

WORKFLOW = Path(__file__).parents[2] / "workflow"
PROGRAMS = {"squeue", "scontrol", "sinfo", "sacct", "sacctmgr", "scancel", "sbatch", "srun"}

UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def programs(programs):
    """They also write down what they are asked."""
    return lambda **scripts: programs(**{name: f'echo "$*" >> $HERE/asked\n{script}' for name, script in scripts.items()})


@pytest.fixture
def asked(tmp_path):
    return lambda: (tmp_path / "asked").read_text().splitlines()


def commands(path: Path) -> set[str]:
    """SLURM's programs that a source file starts: the first words of calls and of lists."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        words = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.List | ast.Tuple) else []
        first = words[0] if words else None
        first = first.values[0] if isinstance(first, ast.JoinedStr) else first
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            found |= PROGRAMS & set(first.value.split()[:1])
    return found


def test_no_other_file_runs_slurms_programs():
    files = [path for path in WORKFLOW.rglob("*.py") if "tests" not in path.parts]
    running = {str(path.relative_to(WORKFLOW / "scripts")): found for path in files if (found := commands(path))}
    assert running.pop("snaketrain/slurm/client.py") >= {"squeue", "scontrol", "sinfo", "scancel", "srun"}
    assert running.pop("snaketrain/launch/slurm_step.py") == {"srun"}, "which starts the training, and is no question"
    assert running == {}


def test_rules_run_none_of_slurms_programs():
    for path in [WORKFLOW.parent / "Snakefile", WORKFLOW / "Snakefile", *(WORKFLOW / "rules").glob("*.smk")]:
        code = [line.partition("#")[0] for line in path.read_text().splitlines()]
        assert not [line for line in code if PROGRAMS - {"sbatch"} & set(line.replace('"', " ").split())], path


def test_many_jobs_are_queried_together(programs, asked):
    programs(squeue="echo 3; echo 1", scontrol="echo 'JobId=2 JobState=COMPLETED Reason=None'")
    assert Slurm().in_queue(["3", "2", "1", "2"]) == {"1", "3"}
    assert asked() == ["--noheader --format=%A --jobs=1,2,3", "show job --oneliner 2"]
    assert Slurm().in_queue([]) == set() and len(asked()) == 2


def test_one_job_that_ended_long_ago_is_not_in_the_queue(programs):
    programs(squeue=UNKNOWN, scontrol=UNKNOWN)
    assert Slurm().in_queue(["1"]) == set()


@pytest.mark.parametrize("squeue", ["", "echo what"])
def test_a_job_that_squeue_does_not_list_is_in_the_queue_until_scontrol_says_otherwise(programs, squeue):
    """squeue was seen to answer nothing, with exit 0, while jobs were running."""
    programs(squeue=squeue, scontrol="echo 'JobId=1 JobName=x JobState=RUNNING Reason=None'")
    assert Slurm().in_queue(["1"]) == {"1"}
    programs(scontrol="echo away >&2; exit 1")
    with pytest.raises(SlurmError, match="scontrol show job .* failed: away"):
        Slurm().in_queue(["1"])


@pytest.mark.parametrize("answers", ["echo 'slurm_load_jobs: something'", "echo '<html>'", "printf '%s' '1|RUNNING|None|rule_a|n1|/here'"])
def test_an_answer_that_is_no_list_of_jobs_or_was_cut_off_is_an_error(programs, answers):
    programs(squeue=answers)
    with pytest.raises(SlurmError, match="squeue's answer is not a list of jobs"):
        Slurm().user_jobs()


def test_a_comment_of_several_lines_is_no_other_answer(programs):
    """Here of a user's only job: without its last columns it is nobody's job, and no reason to wait."""
    programs(squeue="printf '7|RUNNING|None|one\\ntwo|n1|/elsewhere\\n'")
    assert Slurm().user_jobs() == []


def test_whether_a_job_has_ended_may_also_be_an_answer_of_before(programs, asked):
    programs(squeue="true", scontrol="echo 'JobId=1 JobState=RUNNING'")
    slurm = Slurm()
    for _ in range(3):
        assert slurm.in_queue(["1"], max_age_seconds=60) == {"1"}
    assert len(asked()) == 2


def test_an_answer_is_reused_until_it_is_too_old(programs, asked, monkeypatch):
    programs(squeue="echo 1")
    slurm, now = Slurm(), [1000.0]
    monkeypatch.setattr(client.time, "monotonic", lambda: now[0])
    for seconds in (0, 4, 0.5):
        now[0] += seconds
        assert slurm.has_jobs(max_age_seconds=5)
    assert len(asked()) == 1
    now[0] += 1
    assert slurm.has_jobs(max_age_seconds=5) and len(asked()) == 2
    assert slurm.has_jobs() and len(asked()) == 3, "who takes no old answer gets a new one"


def test_a_failure_is_not_remembered(programs, asked):
    programs(squeue="echo away >&2; exit 1")
    slurm = Slurm()
    with pytest.raises(SlurmError, match="squeue --me .* failed: away"):
        slurm.has_jobs(max_age_seconds=5)
    programs(squeue="echo 1")
    assert slurm.has_jobs(max_age_seconds=5) and len(asked()) == 2


def test_threads_that_ask_at_once_share_an_answer(programs, asked):
    programs(squeue="sleep 0.2; echo 1")
    slurm = Slurm()
    threads = [threading.Thread(target=slurm.has_jobs, args=(60,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(asked()) == 1


@pytest.mark.parametrize("ask", [lambda slurm: slurm.user_jobs(), lambda slurm: slurm.refusal("sbatch --test-only")])
def test_no_answer_in_time_is_an_error(programs, monkeypatch, ask):
    """Also where a shell runs the program, which must not outlive it."""
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.5)
    programs(squeue="exec sleep 60", sbatch="exec sleep 60")
    began = time.monotonic()
    with pytest.raises(SlurmError, match=r"(squeue|sbatch) did not answer within 0.5 seconds"):
        ask(Slurm())
    assert time.monotonic() - began < 30


def test_a_program_that_cannot_be_run_is_an_error(programs, tmp_path, monkeypatch):
    programs(scancel="true")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin/scancel").chmod(0o644)
    with pytest.raises(SlurmError, match="scancel"):
        Slurm().cancel("1")


def test_a_time_of_submission_that_is_none_is_an_error(programs):
    programs(squeue="echo N/A")
    with pytest.raises(SlurmError, match="job 7, but 'N/A'"):
        Slurm().submitted_at("7")


def test_a_job_that_has_no_nodes_yet(programs):
    programs(scontrol="echo 'JobId=7 Restarts=3 NodeList=(null)'")
    assert Slurm().allocation("7") == Allocation("7", 3, ())


def test_nodes_that_slurm_has_given_up(programs):
    programs(sinfo="echo 'a1|mixed|none'; echo 'a2|down*|Not responding'; echo 'a3|drained|none'; echo 'a2|down*|Not responding'")
    assert Slurm().down_nodes("a[1-3]") == {"a2": "down (Not responding)", "a3": "drained"}


def test_submission_is_asked_about_as_a_shell_would_read_it(programs, asked):
    programs(sbatch="echo 'allocation failure: Invalid qos' >&2; exit 1")
    assert Slurm().refusal("sbatch --test-only --comment 'a b' --wrap true") == "Invalid qos"
    assert asked() == ["--test-only --comment a b --wrap true"]
    programs(sbatch="true")
    assert Slurm().refusal("sbatch --test-only") is None


@pytest.mark.parametrize(
    ("details", "gpus"),
    [
        ("Nodes=train[3-4] CPU_IDs=0-3 Mem=500 GRES=gpu:2(IDX:0-1)", 2),
        ("Nodes=a CPU_IDs=0-3 Mem=500 GRES=gpu:a100:4(IDX:0-3)  Nodes=b CPU_IDs=0-3 Mem=500 GRES=gpu:a100:2(IDX:0,3)", 2),
        ("Nodes=a CPU_IDs=0 Mem=5 GRES=gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2),nic:1(CNT:1)", 3),
        ("Nodes=a CPU_IDs=0-3 Mem=500 GRES= ", 0),
        ("", 0),
    ],
)
def test_the_gpus_of_a_job_on_each_node(details, gpus):
    """As SLURM 22.05 shows them; JOB_GRES is the total."""
    assert gpus_of(f"JobId=7 TRES=cpu=8,mem=1000M JOB_GRES=gpu:4 {details} MinCPUsNode=1") == gpus


@pytest.mark.parametrize(
    ("comment", "title", "log"),
    [
        ("rule_train_model_wildcards_wide", "train_model wide", "rule_train_model/wide/7.log"),
        ("rule_compare_runs", "compare_runs", "rule_compare_runs/7.log"),
        (
            "rule_wide_evaluate_model_select_checkpoint_train_model",
            "train_model wide",
            "group_wide_evaluate_model_select_checkpoint_train_model/7.log",
        ),
        ("rule_a_b_evaluate_model", "evaluate_model a_b", "group_a_b_evaluate_model/7.log"),
        (
            "rule_words-1a2b-prepare_shard-3_prepare_shard",
            "prepare_shard words-1a2b-prepare_shard-3",
            "group_words-1a2b-prepare_shard-3_prepare_shard/7.log",
        ),
        ("rule_train_model_wildcards_x_train_model", "train_model x_train_model", "rule_train_model/x_train_model/7.log"),
    ],
)
def test_jobs_of_one_or_several_stages_have_a_run_and_a_log(comment, title, log):
    job = QueuedJob("7", "RUNNING", "None", comment, "a1")
    assert str(job.work) == title and job.log(Path("logs")) == Path("logs") / log


def test_jobs_that_have_ended_already_may_be_cancelled(programs):
    """Found by the simulated cluster (seed 14): Ctrl-C ended with an error, although all other jobs were cancelled."""
    ended = "echo 'scancel: error: Kill job error on job id 3: Invalid job id specified' >&2"
    programs(scancel=f"{ended}; exit 1")
    Slurm().cancel("3", "4")
    programs(scancel=f"{ended}; echo 'scancel: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SlurmError, match="Unable to contact"):
        Slurm().cancel("3", "4")
