"""What is reported about a workflow's jobs under SLURM, and when."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from snakemake_executor_plugin_slurm_steady import checks
from snakemake_executor_plugin_slurm_steady.monitor import JobMonitor
from snaketrain.config.schema import Compute
from snaketrain.orchestration.pipeline import Pipeline, ranges_and_folders
from snaketrain.slurm import client
from snaketrain.slurm.client import Slurm, SlurmError
from snaketrain.slurm.jobs import QueuedJob

ROW = QueuedJob("12", "PENDING", "Resources", "rule_train_model_wildcards_small", "")


@pytest.fixture
def told():
    return []


@pytest.fixture
def watch(told):
    return JobMonitor(Slurm(), Path("logs/slurm"), told.append, {})


def test_a_waiting_job_is_reported_once_with_reason_number_and_log(watch, told):
    for minute in (0, 5, 9):
        watch.look([ROW], minute * 60)
    assert told == []
    watch.look([ROW], 600)
    watch.look([ROW], 900)
    assert told == [
        "SLURM job 12 (train_model small) has been waiting for 10 minutes (Resources): the cluster is full. Log: logs/slurm/rule_train_model/small/12.log"
    ]
    watch.look([replace(ROW, reason="Priority")], 1200)
    assert "20 minutes (Priority): other jobs come first" in told[-1] and len(told) == 2


def test_many_jobs_that_wait_for_the_same_reason_are_one_line(watch, told):
    """Of 300 jobs, 242 had a line each."""
    rows = [replace(ROW, number=str(number), reason="Priority" if number > 12 else "Resources") for number in range(12, 312)]
    early = rows[:100]
    watch.look(early, 0)
    for second in range(30, 660, 30):
        watch.look(rows, second)
    assert told == [
        "SLURM job 12 (train_model small) has been waiting for 10 minutes (Resources): the cluster is full. Log: logs/slurm/rule_train_model/small/12.log",
        "99 SLURM jobs have been waiting for 10 minutes (Priority): other jobs come first. The first is 13 (train_model small). "
        "Log: logs/slurm/rule_train_model/small/13.log",
    ]
    watch.look(rows, 660)
    assert told[2:] and told[2].startswith("200 SLURM jobs have been waiting for 10 minutes (Priority)"), "a minute later"
    watch.look(rows, 900)
    assert len(told) == 3


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("PartitionTimeLimit", "lower compute.minutes"),
        ("PartitionNodeLimit", "lower compute.nodes"),
        ("JobHeldAdmin", "`scontrol release 12`"),
        ("launch failed requeued held", "`scontrol release 12`"),
        ("InvalidAccount", "account"),
    ],
)
def test_a_reason_that_waiting_does_not_help_is_reported_at_once(watch, told, reason, advice):
    watch.look([replace(ROW, reason=reason)], 0)
    assert len(told) == 1 and advice in told[0]


@pytest.mark.parametrize(
    ("state", "words"),
    [("down*|Not responding", "down (Not responding)"), ("draining|disk", "draining (disk)"), ("drained|none", "drained")],
)
def test_a_requeued_job_is_reported_with_what_slurm_says_of_its_nodes(watch, told, monkeypatch, state, words):
    """A node that is drained has not died."""
    monkeypatch.setattr(Slurm, "_answer", lambda self, command: f"a1|mixed|none\na2|{state}\n")
    watch.look([replace(ROW, state="RUNNING", nodes="a[1-2]")], 0)
    watch.look([replace(ROW, reason="BeginTime")], 30)
    assert told == [
        f"SLURM job 12 (train_model small) was requeued, and SLURM says that a2 is {words}; a training resumes from its last checkpoint. "
        "Log: logs/slurm/rule_train_model/small/12.log"
    ]
    watch.look([replace(ROW, reason="BeginTime")], 60)
    assert len(told) == 1


def test_a_requeued_job_with_a_range_of_nodes_takes_fewer(told, monkeypatch):
    """SLURM does not answer at first; the next poll asks again, and other jobs are checked meanwhile."""
    asked, answers = [], ["", SlurmError("no answer"), ""]

    def answer(self, command):
        asked.append(command)
        if isinstance(given := answers.pop(0), Exception):
            raise given
        return given

    monkeypatch.setattr(Slurm, "_answer", answer)
    watch = JobMonitor(Slurm(), Path("logs/slurm"), told.append, {str(ROW.work): Compute(nodes="2-6", threads=8)})
    watch.look([replace(ROW, state="RUNNING", nodes="a[1-6]")], 0)
    for second in (30, 60, 90):
        watch.look([ROW, replace(ROW, number="13", reason="JobHeldAdmin")], second)
    assert asked[1:] == 2 * [("scontrol", "update", "JobId=12", "NumNodes=2-6", "NumTasks=16")]
    assert ["was requeued" in line for line in told] == [True, False] and "`scontrol release 13`" in told[1]


def test_a_requeued_job_starts_without_the_nodes_that_failed_it(tmp_path, told, monkeypatch):
    """Nodes that SLURM itself has given up need no exclusion, and return when it takes them back. Retried until SLURM answers."""
    changed, answers = [], [SlurmError("busy"), "a1|down|none\na2|idle|none", " ExcNodeList=b1", "b1", ""]

    def answer(self, command):
        if command[:2] == ("scontrol", "update"):
            changed.append(command[2:])
        given = answers.pop(0) if len(changed) == 0 or command[0] != "squeue" else ""
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(Slurm, "_answer", answer)
    (tmp_path / "nodes_to_exclude.json").write_text(json.dumps({"job": "12", "nodes": ["a1", "a2"]}))
    watch = JobMonitor(Slurm(), Path("logs/slurm"), told.append, {}, {str(ROW.work): tmp_path})
    watch.look([replace(ROW, state="RUNNING", nodes="")], 0)
    for second in (30, 60, 90):
        watch.look([ROW], second)
    assert changed == [("JobId=12", "ExcNodeList=a2,b1")]
    assert sum("will start without a2, which failed it" in line for line in told) == 1


@pytest.fixture
def looked(told, monkeypatch):
    """A monitor that was told of these jobs, one after the other."""

    def look(found: list[QueuedJob], folders: dict[str, Path] | None = None) -> None:
        watch = JobMonitor(Slurm(), Path("logs/slurm"), told.append, {}, folders)
        monkeypatch.setattr(Slurm, "_answer", lambda self, command: "")
        for row in found:
            watch.tell([row])

    return look


def in_turn(*states: str) -> list[QueuedJob]:
    return [replace(ROW, state=state) for state in states]


def test_the_monitor_outlives_an_error_of_the_file_system(tmp_path, told, looked):
    """NFS has many that are not FileNotFoundError."""
    (tmp_path / "file").touch()
    looked(in_turn("RUNNING", "PENDING", "PENDING", "FAILED"), {str(ROW.work): tmp_path / "file"})
    assert "ended as FAILED" in told[-1]


def test_an_error_of_a_look_is_told_once(told, looked):
    """After it, nothing was told of any job any more."""
    looked([None, None, *in_turn("RUNNING", "FAILED")])
    assert [line.split(" (")[0] for line in told] == ["the state of the SLURM jobs cannot be told", "SLURM job 12"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"job": "12"}', '{"job": "12", "nodes": 3}', '"12"'])
def test_notes_that_cannot_be_read_are_told_and_left(tmp_path, told, looked, text):
    (tmp_path / "nodes_to_exclude.json").write_text(text)
    looked(in_turn("RUNNING", "PENDING", "RUNNING", "PENDING", "RUNNING", "FAILED"), {str(ROW.work): tmp_path})
    assert sum("nodes_to_exclude.json cannot be read" in line for line in told) == 1
    assert "ended as FAILED" in told[-1] and not any("cannot be told" in line for line in told)


def test_the_wait_is_counted_from_zero_after_a_run(watch, told, monkeypatch):
    monkeypatch.setattr(Slurm, "_answer", lambda self, command: "")
    watch.look([ROW], 0)
    watch.look([replace(ROW, state="RUNNING")], 500)
    watch.look([ROW], 5000)
    watch.look([ROW], 5500)
    assert not any("waiting" in line for line in told)


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("OUT_OF_MEMORY", "compute.memory_mb"),
        ("TIMEOUT", "compute.minutes"),
        ("NODE_FAIL", "SLURM gave up one of its nodes"),
        ("PREEMPTED", "took its place"),
    ],
)
def test_how_a_job_ended(watch, told, state, advice):
    watch.look([replace(ROW, state="RUNNING")], 0)
    for second in (30, 60):
        watch.look([replace(ROW, state=state)], second)
    assert len(told) == 1 and f"ended as {state}" in told[0] and advice in told[0]


@pytest.mark.parametrize("cancelling", [True, False])
def test_jobs_that_ctrl_c_cancels_have_no_line_each(told, cancelling):
    watch = JobMonitor(Slurm(), Path("logs/slurm"), told.append, {}, None, lambda: cancelling)
    watch.look(in_turn("RUNNING"), 0)
    watch.look(in_turn("CANCELLED"), 30)
    assert len(told) == (not cancelling)


def test_success_and_earlier_ends_are_not_reported(watch, told):
    watch.look([replace(ROW, state="FAILED"), replace(ROW, number="13", state="RUNNING")], 0)
    watch.look([replace(ROW, state="FAILED"), replace(ROW, number="13", state="COMPLETED")], 30)
    assert told == []


def test_a_job_without_wildcards_has_its_log_too():
    row = QueuedJob("3", "RUNNING", "None", "rule_compare_runs", "")
    assert (str(row), row.log(Path("l"))) == ("SLURM job 3 (compare_runs)", Path("l/rule_compare_runs/3.log"))


def test_jobs_of_other_folders_are_not_ours(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shown = f"1|RUNNING|None|rule_train_model_wildcards_a|n1|{tmp_path}\n2|RUNNING|None|rule_train_model_wildcards_a|n1|/elsewhere\n3|RUNNING|None|mine|n1|{tmp_path}\n"
    monkeypatch.setattr(Slurm, "_answer", lambda self, command: shown)
    assert [job.number for job in client.jobs_here(Slurm())] == ["1"]


def test_jobs_are_recognised_where_the_site_rewrites_their_comments(monkeypatch, tmp_path, programs):
    monkeypatch.chdir(tmp_path)
    programs(
        squeue='for job in 4 5 6 7 8; do echo "$job|RUNNING|None|site policy|n1|$HERE"; done',
        scontrol='echo "$*" >> $HERE/asked; for number; do :; done; [ $number != 7 ] || exit 1; case $number in '
        "4) log=rule_train_model/large/4.log;; 5) log=rule_compare_runs/5.log;; 6) log=my-own.log;; 8) log=group_wide_evaluate_model_train_model/8.log;; esac; "
        'echo "JobId=$number StdErr=$HERE/x StdOut=$HERE/logs of mine/$log Power= x"',
    )
    slurm = Slurm()
    for _ in range(2):
        found = {job.number: job.comment for job in client.jobs_here(slurm)}
        assert found == {"4": "rule_train_model_wildcards_large", "5": "rule_compare_runs", "8": "rule_wide_evaluate_model_train_model"}
    assert (tmp_path / "asked").read_text().split().count("4") == 1, "once for each job"


def test_missing_slurm_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="squeue is not installed here"):
        client.jobs_here(Slurm())


TOO_MANY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("sbatch: error: invalid partition specified: nowhere\nallocation failure: Invalid partition name specified", "compute.partition"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified", "slurm_account"),
        ("allocation failure: Requested node configuration is not available", "compute.memory_mb"),
        ("sbatch: error: Memory specification can not be satisfied", "compute.memory_mb"),
        ("sbatch: error: Invalid generic resource (gres) specification", "compute.gpus"),
        ("allocation failure: Requested time limit is invalid (missing or exceeds some limit)", "compute.minutes"),
        ("allocation failure: Requested nodes are busy", None),
    ],
)
def test_what_slurm_would_refuse_is_reported_once_with_a_remedy(monkeypatch, error, advice):
    asked = []

    def run(self, command):
        asked.append(command)
        return subprocess.CompletedProcess(command, command[0] != "sinfo", "", "" if command[0] == "sinfo" else error)

    monkeypatch.setattr(Slurm, "_run", run)
    monkeypatch.setattr(checks, "submission", lambda job, settings: f"sbatch --test-only --comment x {job.asks} --wrap true")
    monkeypatch.setattr(checks, "comment", lambda job: job.comment)
    jobs = [
        type("Job", (), {"asks": asks, "comment": f"rule_train_model_wildcards_{name}"})
        for name, asks in (("a", "-p x"), ("b", "-p x"), ("c", "-p y"))
    ]
    found = checks.refusals(Slurm(), jobs, SimpleNamespace(), print)
    assert list(dict.fromkeys(command for command in asked if "sbatch" in command)) == [
        f"exec sbatch --test-only --comment x -p {partition} --wrap true" for partition in ("x", "y")
    ]
    assert len(found) == (2 if advice else 0)
    assert all(advice in line and "\n" not in line for line in found)
    assert not found or (found[0].startswith("train_model a: SLURM would refuse it: ") and found[0].endswith("Asked for: -p x"))


OUTAGE_SECONDS = 400


@pytest.mark.parametrize("outage", [0, OUTAGE_SECONDS], ids=["it answers", "it did not answer before"])
@pytest.mark.parametrize("looks", [0, 2, None], ids=["known", "known soon", "never known"])
def test_a_controller_that_does_not_know_its_nodes_yet_is_asked_again(monkeypatch, told, looks, outage):
    """For a few seconds after its start, SLURM 22.05 has nodes in the state `unknown`, and says of all that they are not available."""
    unknown, now, away = {"looks": looks}, [0.0], ["first"] * bool(outage)

    def run(self, command):
        if away:
            now[0] += outage
            raise SlurmError(f"sbatch did not answer for the {away.pop()} job")
        if command[0] == "sinfo":
            return subprocess.CompletedProcess(command, 0, "a1 idle\na2 unknown*\n" if unknown["looks"] != 0 else "a1 idle\na2 down*\n", "")
        if unknown["looks"]:
            unknown["looks"] -= 1
        error = "allocation failure: Requested node configuration is not available" if unknown["looks"] != 0 or looks == 0 else ""
        return subprocess.CompletedProcess(command, bool(error), "", error)

    monkeypatch.setattr(Slurm, "_run", run)
    monkeypatch.setattr(checks, "submission", lambda job, settings: f"sbatch --test-only --comment x -p {job} --wrap true")
    monkeypatch.setattr(checks, "comment", lambda job: f"rule_train_model_wildcards_{job}")
    monkeypatch.setattr(checks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checks.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    found = checks.refusals(Slurm(), ["first", "second"][not outage :], SimpleNamespace(), told.append)
    assert bool(found) == (looks != 2), "what it never learns, or knows, it refuses"
    assert len(told) == (looks != 0) and all("waits until its nodes have registered" in line for line in told)
    assert now[0] - outage == {0: 0, 2: 2, None: checks.REGISTERING_SECONDS}[looks]


@pytest.mark.parametrize("in_queue", [True, False])
@pytest.mark.parametrize(
    ("text", "is_temporary"),
    [
        (TOO_MANY, False),
        (f"sbatch: error: AssocGrpSubmitJobsLimit\n{TOO_MANY.replace('sbatch: error: Batch job submission', 'allocation')}", True),
    ],
)
def test_a_limit_that_is_full_is_no_refusal(monkeypatch, in_queue, text, is_temporary):
    """While jobs are in the queue: they may be those of a killed workflow, to be adopted. With none, the job alone asks for too much,
    unless SLURM names a limit of all jobs together, which those of other users fill."""

    def run(self, command):
        if command[0] == "squeue":
            return subprocess.CompletedProcess(command, 0, "4\n" if in_queue else "", "")
        return subprocess.CompletedProcess(command, 1, "", text)

    monkeypatch.setattr(Slurm, "_run", run)
    monkeypatch.setattr(checks, "submission", lambda job, settings: "sbatch --test-only --comment x -p x --wrap true")
    monkeypatch.setattr(checks, "comment", lambda job: "rule_train_model_wildcards_a")
    found = checks.refusals(Slurm(), ["a job"], SimpleNamespace(), print)
    assert bool(found) == (not in_queue and not is_temporary) and "slurm_account" not in "".join(found)


@pytest.mark.parametrize(("arrays", "resources"), [("train_model", {}), (None, {"slurm_cluster": "other"})])
def test_what_could_not_be_followed_is_refused(arrays, resources):
    (found,) = checks.not_followed([SimpleNamespace(resources=resources)], SimpleNamespace(array_jobs=arrays))
    assert found.startswith("slurm-steady-array-jobs: " if arrays else "slurm_cluster: ") and "emove " in found


def test_the_monitor_knows_all_jobs():
    """Also those that are planned while the workflow runs: they start on a range of nodes again as well."""
    source = {"path": "x"}
    config = {"data": {"train": source, "tokenizer": source}, "train": {"steps": 100}, "compute": {"nodes": "1-4", "threads": 4}}
    config |= {"sweeps": {"rate": {"train.learning_rate": [0.1, 0.2]}}}
    ranges, folders = ranges_and_folders(Pipeline(config))
    run = "rate-learning_rate=0.1"
    training, several = Path(f"results/runs/{run}/training"), f"rule_{run}_evaluate_model_select_checkpoint_train_model"
    for comment, folder in {
        f"rule_train_model_wildcards_{run}": training,
        several: training,
    }.items():
        assert folders[str(replace(ROW, comment=comment).work)] == folder, comment
    assert {name.split()[0] for name in ranges} == {"train_model"} and ranges[f"train_model {run}"].nodes == "1-4"
