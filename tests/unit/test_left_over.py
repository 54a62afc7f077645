"""Which jobs of a killed workflow continue, which are done, and which are ended."""

import os
import subprocess
import types
from pathlib import Path

import pytest
from fake_slurm import listing, look
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_slurm_steady import left_over
from snakemake_executor_plugin_slurm_steady.checks import fingerprint
from snakemake_executor_plugin_slurm_steady.left_over import Left, LeftOver
from snaketrain.orchestration.submissions import Submission, Submissions, stamps
from snaketrain.slurm import client
from snaketrain.slurm.client import Slurm, SlurmError

COMMENT = "rule_train_model_wildcards_small"


class FakeSlurm(Slurm):
    """`states` are the jobs of this folder; what is cancelled leaves the queue."""

    def __init__(self, **states: str):
        super().__init__()
        self.states_by_number, self.cancelled = {name.strip("_"): state for name, state in states.items()}, []
        self.empty_answers, self.folder, self.asked = 0, "", []

    def _answer(self, command):
        self.asked.append(command[0])
        if command[0] == "scancel":
            self.cancelled += command[1:]
            for number in command[1:]:
                del self.states_by_number[number]
            return ""
        if command[0] == "scontrol":
            if command[-1] not in self.states_by_number:
                raise SlurmError("slurm_load_jobs error: Invalid job id specified")
            return f"JobId={command[-1]} JobState={self.states_by_number[command[-1]]} WorkDir={self.folder or os.getcwd()} StdErr=x"
        if self.empty_answers:
            self.empty_answers -= 1
            return ""
        if "--format=%A" in command:
            asked = command[-1].removeprefix("--jobs=").split(",")
            return "\n".join(set(asked) & set(self.states_by_number))
        return "".join(
            f"{number}|{state}|None|{COMMENT}|n1|{self.folder or os.getcwd()}\n" for number, state in self.states_by_number.items()
        )


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(left_over, "fingerprint", lambda job, settings: job.fingerprint)
    return types.SimpleNamespace(name="train_model", wildcards=["small"], output=["manifest.json"], fingerprint="now")


def settled(job, slurm, is_ready=True, is_done=False) -> tuple[LeftOver, list[str]]:
    said = []
    found = LeftOver(slurm, Submissions(), said.append)
    found.settle([job], None, lambda job: is_ready, lambda job: is_done)
    return found, said


def submitted(number: str, fingerprint: str = "now") -> None:
    """By a workflow that has ended."""
    Submissions().submitted(Submission(number, COMMENT, fingerprint, f"{number}.log", {"manifest.json": None}))
    lines = Submissions().file.read_text().replace(f", {os.getpid()}, ", ", 0, ")
    Submissions().file.write_text(lines)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED"])
def test_a_job_that_would_be_submitted_now_continues(job, state):
    submitted("4")
    slurm = FakeSlurm(_4=state)
    found, said = settled(job, slurm)
    assert (left := found.take(job)).submission.number == "4" and not left.is_done
    assert found.take(job) is None, "once"
    assert slurm.cancelled == [] and "SLURM job 4 (train_model small)" in said[0] and "it is adopted" in said[0]


def test_a_job_that_squeue_does_not_list_is_looked_for_again(job, monkeypatch):
    """squeue may answer nothing, with exit 0; a second job would be submitted."""
    submitted("4")
    slurm = FakeSlurm(_4="RUNNING")
    slurm.empty_answers = 2
    monkeypatch.setattr(left_over.time, "sleep", lambda seconds: None)
    assert settled(job, slurm)[0].take(job).submission.number == "4" and slurm.empty_answers == 0
    slurm.empty_answers = 10**9
    monkeypatch.setattr(left_over, "ENDING_SECONDS", 0)
    with pytest.raises(SlurmError, match="Job 4 of this folder: squeue does not list it"):
        settled(job, slurm)


def test_a_job_of_the_folder_that_this_one_is_a_copy_of_is_not_looked_for(job, monkeypatch):
    """A project is copied while its jobs run, with `.snakemake`; or another job has the number by now."""
    submitted("4")
    slurm = FakeSlurm(_4="RUNNING")
    slurm.folder = "/a/first project"
    monkeypatch.setattr(left_over, "ENDING_SECONDS", 0)
    assert settled(job, slurm)[0].take(job) is None and slurm.cancelled == []


def test_a_job_with_other_settings_is_ended(job):
    submitted("4", fingerprint="before")
    slurm = FakeSlurm(_4="RUNNING")
    found, said = settled(job, slurm)
    assert found.take(job) is None and slurm.cancelled == ["4"]
    assert "with other settings" in said[0] and "resumes in a new job" in said[0]


def test_a_job_of_which_nothing_is_known_is_ended(job):
    """snakemake was killed before it could record the job."""
    submitted("3")
    slurm = FakeSlurm(_4="RUNNING")
    assert settled(job, slurm)[0].take(job) is None
    assert slurm.cancelled == ["4"]


def test_of_two_jobs_the_known_one_continues(job):
    submitted("4")
    slurm = FakeSlurm(_3="RUNNING", _4="PENDING")
    assert settled(job, slurm)[0].take(job).submission.number == "4"
    assert slurm.cancelled == ["3"]


def test_a_job_whose_input_is_made_again_is_ended(job):
    submitted("4")
    slurm = FakeSlurm(_4="RUNNING")
    assert settled(job, slurm, is_ready=False)[0].take(job) is None
    assert slurm.cancelled == ["4"]


def test_a_job_that_is_about_to_end_is_waited_for(job, monkeypatch):
    """It was cancelled and saves, or it is requeued and continues."""
    submitted("4")
    Submissions().submitted(Submission("3", "rule_evaluate_model_wildcards_small", "now", "3.log", {}))
    slurm = FakeSlurm(_4="COMPLETING")
    looks = iter(["COMPLETING", "PENDING"])
    monkeypatch.setattr(left_over.time, "sleep", lambda seconds: slurm.states_by_number.update({"4": next(looks)}))
    found, said = settled(job, slurm)
    assert found.take(job).submission.number == "4" and slurm.cancelled == []
    assert said[0].startswith("Waiting for SLURM job 4 (train_model small)")
    assert slurm.asked.count("scontrol") == 1, "about job 3, of which no workflow saw the end"


@pytest.mark.parametrize(
    "comment", ["rule_train_part_wildcards_small_1", "rule_small_evaluate_model_select_checkpoint_train_model"], ids=["part", "group"]
)
def test_a_job_that_trains_the_same_run_in_another_way_is_ended(in_parts, job, monkeypatch, comment):
    """A search or `in_training_job` was set or removed meanwhile: it writes to the folder of the job to come."""
    slurm = FakeSlurm(_4="RUNNING")
    monkeypatch.setattr(f"{__name__}.COMMENT", comment)
    found, _ = settled(job, slurm)
    assert found.take(job) is None and slurm.cancelled == ["4"]


def test_jobs_that_are_not_to_do_now_are_reported_and_left_alone(job, monkeypatch):
    """Their runs were removed from the configuration, and they would train on for days."""
    slurm = FakeSlurm(_4="RUNNING", _5="CANCELLED")
    monkeypatch.setattr(f"{__name__}.COMMENT", "rule_train_model_wildcards_removed")
    found, said = settled(job, slurm)
    assert found.take(job) is None and slurm.cancelled == []
    assert said == [
        "SLURM job 4 (train_model removed): left by an earlier workflow in this folder, and not among the jobs to do now. Not ended; "
        "to end what is not wanted any more: scancel 4"
    ]


def test_what_finished_while_no_workflow_ran_counts(job):
    submitted("4")
    found, _ = settled(job, FakeSlurm(), is_done=True)
    assert found.take(job).is_done


def test_a_job_that_still_runs_is_not_done_though_its_results_are_there(job):
    submitted("4")
    found, _ = settled(job, FakeSlurm(_4="RUNNING"), is_done=True)
    assert not found.take(job).is_done


def test_a_job_whose_end_a_workflow_has_seen_is_not_taken_for_done(job):
    """The job must run again for another reason."""
    submitted("4")
    Submissions().ended("4", "COMPLETED")
    assert settled(job, FakeSlurm(), is_done=True)[0].take(job) is None


def test_a_job_that_a_living_workflow_follows_is_left_to_it(job):
    """Its lock was removed by --unlock while it ran."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        submitted("4")
        ticks = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        own = Submissions().file.read_text()
        Submissions().file.write_text(own[: own.index(", 0, ")] + f", {other.pid}, {ticks}]" + own[own.index('], "time"') + 1 :])
        slurm = FakeSlurm(_4="RUNNING")
        with pytest.raises(WorkflowError, match=f"process {other.pid}.*still follows it"):
            settled(job, slurm)
        assert slurm.cancelled == []
    finally:
        other.kill()
        other.wait()


def test_a_job_that_does_not_end_is_reported(job, monkeypatch):
    submitted("4", fingerprint="before")
    slurm = FakeSlurm(_4="RUNNING")
    monkeypatch.setattr(slurm, "cancel", lambda *numbers: None)
    monkeypatch.setattr(client, "ENDING_SECONDS", 0)
    _, said = settled(job, slurm)
    assert "Still running: SLURM job 4" in said[-1]


def test_the_fingerprint_changes_with_all_that_decides_what_a_job_does(tmp_path, monkeypatch):
    monkeypatch.setattr("snakemake_executor_plugin_slurm_steady.checks.submission", lambda job, settings: job.asks)
    manifest = tmp_path / "manifest.json"
    manifest.write_text("1")

    def of(**changes) -> str:
        given = {"asks": "sbatch -N2", "params": ["train.epochs=1", "python train_model.py"], "input": [manifest]}
        return fingerprint(types.SimpleNamespace(**given | changes), None)

    before = of()
    assert before == of(params=["python train_model.py", "train.epochs=1"])
    assert len({before, of(asks="sbatch -N3"), of(params=["train.epochs=2", "python train_model.py"]), of(input=[])}) == 4
    manifest.write_text("2")
    assert of() != before


def test_what_is_written_while_no_workflow_runs_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old").touch()
    for number, output in enumerate(("old", "missing", "new", "seen"), start=1):
        Submissions().submitted(Submission(str(number), f"rule_{output}", "", "", stamps([output])))
    for path in ("new", "seen"):
        Path(path).touch()
    Submissions().ended("4", "COMPLETED")
    assert Submissions().written_unseen() == {"new"}


def test_a_result_that_cannot_be_looked_at_is_taken_for_missing(tmp_path, monkeypatch):
    """As on NFS; an error here would end the thread that queries the states of all jobs."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert stamps(["file/manifest.json"]) == {"file/manifest.json": None}


def test_a_line_torn_by_a_crash_loses_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Submissions().latest() == {}
    submitted("4")
    with open(Submissions().file, "a") as file:
        file.write('{"event": "subm')
    assert Submissions().latest()[COMMENT].number == "4"


# --- in the executor


def left(number: str, is_done: bool = False) -> Left:
    made = Submission(number, "rule_train_model", "as it is now", f"{number}.log", {"manifest.json": None}, "elsewhere", 1, 1)
    Submissions().submitted(made)
    return Left(made, is_done)


def test_a_leftover_job_continues(slurm, executor, submission):
    slurm(sbatch="echo 12")
    executor.left_over.kept["rule_train_model"] = left("4")
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["4"]
    made = executor.submissions.latest()["rule_train_model"]
    assert (made.number, made.is_ours, made.state) == ("4", True, "")
    slurm(squeue=listing("4|COMPLETED"))
    assert look(executor, executor.active_jobs) == []
    assert executor.reported == [("4", "")] and executor.submissions.latest()["rule_train_model"].state == "COMPLETED"


def test_ctrl_c_cancels_a_leftover_job_whose_turn_has_not_come(slurm, executor, tmp_path):
    """Snakemake runs no more than `--jobs` at once; the others of the workflow before run all the same."""
    slurm(squeue=f"[ -e {tmp_path}/cancelled ] || echo '4|RUNNING|None|{COMMENT}|n1|{tmp_path}'")
    executor.left_over.kept = {COMMENT: Left(Submission("4", COMMENT, "now", "4.log", {}), is_done=False)}
    executor.left_over.kept |= {f"{COMMENT}2": Left(Submission("5", f"{COMMENT}2", "now", "5.log", {}), is_done=True)}
    executor.cancel_jobs([])
    assert (tmp_path / "cancelled").read_text() == "4\n"


def test_a_leftover_job_that_fails_is_submitted_by_the_retry(slurm, executor, submission):
    slurm(sbatch="echo 12", squeue=listing("4|FAILED"))
    submission.attempt, submission.restart_times = 1, 2
    executor.left_over.kept["rule_train_model"] = left("4")
    executor.run_job(submission)
    look(executor, executor.active_jobs)
    executor.run_job(submission)
    assert [job.external_jobid for job in executor.active_jobs] == ["4", "12"]


def test_a_leftover_job_that_slurm_has_forgotten_is_done_if_its_results_exist(slurm, executor, submission):
    """It has written its result before this workflow began to follow it."""
    submission.output = ["manifest.json"]
    Path("manifest.json").touch()
    executor.left_over.kept["rule_train_model"] = left("4")
    executor.run_job(submission)
    for _ in range(2):
        look(executor, executor.active_jobs)
    assert executor.reported == [("4", "")]


def test_what_finished_while_no_workflow_ran_is_not_submitted(slurm, executor, submission):
    slurm(sbatch="echo 12")
    executor.left_over.kept["rule_train_model"] = left("4", is_done=True)
    executor.run_job(submission)
    assert (executor.active_jobs, executor.reported) == ([], [("4", "")])
    assert executor.submissions.latest()["rule_train_model"].state == "COMPLETED"
