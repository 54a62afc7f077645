"""After a failure: compares the runs that have a result, and reports why the others have none.

Snakemake does not run a job whose inputs are missing, so the workflow's comparison waits for all runs. This one writes no
manifest: the next start of the workflow compares all runs.
"""

import re
import subprocess
import sys
from pathlib import Path

from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.snakemake_objects import Dag, Job, Scheduler
from snaketrain.orchestration.stage_commands import comparison_without
from snaketrain.runtime.journal import read_events

FROM_LAUNCHERS = re.compile(r"\[?[EWI]\d{4}[ :]|srun: error: |[=-]+$")  # messages of launchers that end the other processes after an error
EXCEPTION = re.compile(r"(?!torch\.distributed\.elastic)[\w.]*(Error|Exception|Interrupt|NotFound)\b")
LAST_BYTES = 65_536  # read from the end of a journal, which may be long
TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


def compare_finished(pipeline: Pipeline, dag: Dag, scheduler: Scheduler) -> None:
    """Compares the finished runs if a comparison was requested. The DAG and the scheduler are Snakemake's, after its last job."""
    if not any(job.rule.name == "compare_runs" for job in dag.needrun_jobs()):
        return
    unfinished = unfinished_runs(dag, scheduler)
    if 0 < len(unfinished) < len(pipeline.runs):
        subprocess.run(["bash", "-c", comparison_without(pipeline, unfinished)])
    else:
        for run, why in unfinished.items():
            print(f"{run}: {why}", file=sys.stderr)


def unfinished_runs(dag: Dag, scheduler: Scheduler) -> dict[str, str]:
    """The reason by run: `train_model failed: RuntimeError: ...`."""
    left = set(dag.needrun_jobs())
    last = {job.wildcards.run: job for job in left if job.rule.name == "evaluate_model"}
    return {run: _why(_with_all_before(job, dag, left), dag, scheduler) for run, job in sorted(last.items())}


def _with_all_before(job: Job, dag: Dag, left: set[Job]) -> list[Job]:
    """The job and the unfinished ones that it waits for."""
    found = [job]
    for each in found:
        found += [before for before in dag.dependencies[each] if before in left and before not in found]
    return found


def _why(jobs: list[Job], dag: Dag, scheduler: Scheduler) -> str:
    for state, among in (("failed", scheduler.failed), ("interrupted", scheduler.running)):
        if found := [job for job in jobs if (dag.get_job_group(job) or job) in among]:
            job = max(found, key=lambda each: _written(Path(each.log[0])))  # of a group, which fails as a whole, the one that ran last
            return f"{job.rule.name} {state}: {last_error(Path(job.log[0]), Path(job.output[0]).parent)}"
    return "not started"


def _written(log: Path) -> float:
    return log.stat().st_mtime if log.exists() else 0.0


def last_error(log: Path, folder: Path) -> str:
    """The error that a job ended with, from its log, or from the journal of a training."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"it left no {log}; Snakemake's own messages say why"
    journal = folder / "journal.jsonl"
    events = read_events(journal, max(0, journal.stat().st_size - LAST_BYTES))[0] if journal.is_file() else []
    if events and events[-1]["event"] == "end":
        end = events[-1]
        reason = _one_line(end.get("error") or f"stopped by {', '.join(end.get('signals', []))} at step {end['step']}")
        if reason.removesuffix("...") in text:  # otherwise it is from an earlier attempt
            return reason
    lines = [TIME.sub("", line) for line in text.splitlines()[1:]]  # the first line is the command
    messages = [line for line in lines if line.strip() and not FROM_LAUNCHERS.match(line)]
    return _one_line(next((line for line in reversed(messages) if EXCEPTION.match(line)), messages[-1] if messages else f"{log} is empty"))


def _one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return line if len(line) <= 500 else line[:497] + "..."
