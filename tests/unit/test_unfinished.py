"""Why a run has no result: from Snakemake's state of its jobs, and from their logs."""

import json
import os
from types import SimpleNamespace

import pytest
from snakemake.iocontainers import Wildcards

from snaketrain.orchestration import unfinished
from snaketrain.orchestration.job_errors import last_error
from snaketrain.orchestration.unfinished import by_reason, without_results

STAGES = ("train_model", "select_checkpoint", "evaluate_model")


class Job(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    """Snakemake's DAG of two runs on the same data, nothing of which is finished, and a scheduler whose sets of jobs can be filled."""
    monkeypatch.chdir(tmp_path)
    jobs = {"prepare_data": job("prepare_data")}
    before = {jobs["prepare_data"]: []}
    for run in ("a", "b"):
        above = jobs["prepare_data"]
        for stage in STAGES:
            jobs[stage, run] = job(stage, run)
            before[jobs[stage, run]] = [above]
            above = jobs[stage, run]
    left = set(jobs.values())
    dag = SimpleNamespace(needrun_jobs=lambda: iter(left), dependencies=before, get_job_group=lambda job: None)
    return SimpleNamespace(jobs=jobs, left=left, dag=dag, scheduler=SimpleNamespace(failed=set(), running=set()))


def job(stage: str, run: str = "", **further: str) -> Job:
    wildcards = Wildcards(fromdict={"run": run} | further)
    return Job(
        rule=SimpleNamespace(name=stage), wildcards=wildcards, log=[f"logs/{stage}/{run}.log"], output=[f"out/{stage}-{run}/manifest.json"]
    )


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_runs_whose_data_cannot_be_prepared_have_no_result(workflow, tmp_path):
    workflow.scheduler.failed.add(workflow.jobs["prepare_data"])
    write(tmp_path / "logs/prepare_data/.log", "python prepare_data.py\nprepare_data: no rows are left\n")
    expected = "prepare_data failed: prepare_data: no rows are left"
    assert without_results(workflow.dag, workflow.scheduler) == {"a": expected, "b": expected}


def test_a_run_whose_evaluation_on_a_further_set_failed_is_compared_without_it(workflow, tmp_path, monkeypatch):
    monkeypatch.setattr(unfinished, "evaluates", lambda rule: rule.startswith("evaluate_"))  # also without the extra
    for run in ("a", "b"):
        on_set = job("evaluate_set", run, evaluation_set="more")
        workflow.left.add(on_set)
        workflow.dag.dependencies[on_set] = [workflow.jobs["select_checkpoint", run]]
        if run == "a":
            workflow.scheduler.failed.add(on_set)
    for finished in ("prepare_data", *((stage, "a") for stage in STAGES)):
        workflow.left.discard(workflow.jobs[finished])
    write(tmp_path / "logs/evaluate_set/a.log", "python evaluate_set.py\nout of memory\n")
    assert without_results(workflow.dag, workflow.scheduler) == {"a/more": "evaluate_set failed: out of memory", "b": "not started"}


def test_many_runs_that_had_not_begun_are_one_line(workflow):
    """After Ctrl-C, each of 300 jobs that were waiting in the queue was said to have left no log."""
    workflow.left.discard(workflow.jobs["prepare_data"])
    workflow.scheduler.running |= {workflow.jobs["train_model", "a"], workflow.jobs["train_model", "b"]}
    found = without_results(workflow.dag, workflow.scheduler)
    assert list(by_reason(found)) == ["a, b: train_model had not begun"]
    many = {str(number): "not started" for number in range(300)} | {"x": "train_model failed: out of memory"}
    assert list(by_reason(many)) == ["0, 1, 2, 3, 4 and 295 more: not started", "x: train_model failed: out of memory"]


def test_the_last_job_that_ran_of_a_submitted_group_has_failed(workflow, tmp_path):
    workflow.left.discard(workflow.jobs["prepare_data"])
    group = frozenset(workflow.jobs[stage, "a"] for stage in STAGES)
    workflow.dag.get_job_group = lambda job: group if job in group else None
    workflow.scheduler.failed.add(group)
    for number, stage in enumerate(("evaluate_model", "train_model", "select_checkpoint")):  # the first one is from an earlier start
        log = write(tmp_path / f"logs/{stage}/a.log", f"python {stage}.py\n{stage} has its say\n")
        os.utime(log, (number, number))
    assert without_results(workflow.dag, workflow.scheduler)["a"] == "select_checkpoint failed: select_checkpoint has its say"


def test_a_failed_an_interrupted_and_a_finished_run(workflow, tmp_path):
    for stage in STAGES:
        workflow.left.discard(workflow.jobs[stage, "a"])
    workflow.left.discard(workflow.jobs["prepare_data"])
    assert without_results(workflow.dag, workflow.scheduler) == {"b": "not started"}
    workflow.scheduler.running.add(workflow.jobs["train_model", "b"])
    write(
        tmp_path / "logs/train_model/b.log",
        "python train_model.py\n2026-11-22 19:00:00,123 b: stopped by SIGINT at step 12 of 90; saved.\n",
    )
    write(
        tmp_path / "out/train_model-b/journal.jsonl",
        json.dumps({"event": "end", "status": "STOPPED", "signals": ["SIGINT"], "step": 12}) + "\n",
    )
    assert without_results(workflow.dag, workflow.scheduler) == {"b": "train_model interrupted: stopped by SIGINT at step 12"}


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("Traceback (most recent call last):\n  File 'x'\nRuntimeError: not today\n", "RuntimeError: not today"),
        ("Traceback\nmy.Error: so\n  more\nE1122 19:12:58.633000 25319 api.py:1002] failed (exitcode: 1)\n", "my.Error: so"),
        ("2026-11-22 19:12:58,475 disk full\nsrun: error: a1: task 0: Exited with exit code 1\n", "disk full"),
        ("slurmstepd: error: Detected 1 oom_kill event\n", "slurmstepd: error: Detected 1 oom_kill event"),
        ("small  eta 0:40  60/126  48 %  loss 0.482\nkilled by SIGKILL\n", "killed by SIGKILL"),
        ("2026-11-22 19:12:58,475 small  0/?  dev loss 0.7\nended with exit code 3\n", "ended with exit code 3"),
        ("own.Error: odd\nKeyError: so\nended with exit code 3\n", "KeyError: so"),
        (
            "RuntimeError: connection closed by peer\nwarning: launch_local: rank 1 was killed by SIGKILL; giving up\nkilled by SIGKILL\n",
            "rank 1 was killed by SIGKILL; giving up",
        ),
        (
            "small  60/126\nthe kernel killed 1 process of this job on a1 for memory (limit 100 MB)\nkilled by SIGKILL\n",
            "killed by SIGKILL: the kernel killed 1 process of this job on a1 for memory (limit 100 MB)",
        ),
        ("Traceback (most recent call last):\n  File 'x'\nKeyboardInterrupt\n", "stopped by SIGINT"),
        ("reading\ninterrupted\n", "stopped by SIGINT"),
        ("starting\nsmall  eta 0:40  60/126  48 %  loss 0.482\n", "starting"),
        ("", "{log} is empty"),
        (None, "it left no {log}; Snakemake's own messages say why"),
    ],
)
def test_the_last_error_of_a_log(tmp_path, log, found):
    path = tmp_path / "job.log"
    if log is not None:
        path.write_text(f"python stage.py --notes 'Error: none'\n{log}")
    assert last_error(path, tmp_path) == found.replace("{log}", str(path))


def test_a_journal_of_an_earlier_start_is_ignored(tmp_path):
    lines = [{"event": "attempt"}, {"event": "end", "status": "FAILED", "error": "OldError: long ago", "step": 3}]
    write(tmp_path / "journal.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    log = write(tmp_path / "job.log", "command\nImportError: now\nE1122 19:00 x] failed\n")
    assert last_error(log, tmp_path) == "ImportError: now"
    log.write_text("command\nOldError: long ago\nCleanupError: afterwards\n")
    assert last_error(log, tmp_path) == "OldError: long ago"


def test_a_run_whose_first_part_failed_has_no_result(in_parts, workflow, tmp_path):
    part = job("train_part", "c")
    part.output = ["results/runs/c/parts/1/manifest.json"]
    workflow.left.add(part)
    workflow.dag.dependencies[part] = []
    workflow.scheduler.failed.add(part)
    write(tmp_path / "logs/train_part/c.log", "python train_part.py\nRuntimeError: no space\n")
    assert without_results(workflow.dag, workflow.scheduler)["c"] == "train_part failed: RuntimeError: no space"
