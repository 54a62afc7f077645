"""Why jobs run, and why some have no result.

After a failure, the runs that have a result are compared, and for the others, or evaluations on further sets, the reason is reported.
Snakemake does not run a job whose inputs are missing, so the workflow's comparison waits for all runs. This one writes no
manifest: the next start of the workflow compares all runs.
"""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.orchestration import launching
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.job_errors import last_error
from snaketrain.orchestration.names import RESULTS, run_of
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.rule_values import job_name
from snaketrain.orchestration.stages import evaluates, folder_of_job, parts_of
from snaketrain.runtime.credentials import hidden_in
from snaketrain.runtime.manifests import PRIVATE_FILE, read_if_intact, write_checked
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from snakemake.dag import DAG
    from snakemake.jobs import Job
    from snakemake.scheduling.job_scheduler import JobScheduler

LOG = Path("logs/compare_runs.log")
NAMES_SHOWN = 5


def print_comparison() -> None:
    """What the job has printed, without its command and its last line."""
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines()[1:] if LOG.is_file() else []
    print("", *(line for line in lines if not line.startswith("compare_runs: done in")), "", sep="\n", file=sys.stderr)


def verdict(manifest: str) -> list[str]:
    """Of the last comparison, a sentence a line, for a template in reStructuredText; none before there is a comparison."""
    facts = (read_if_intact(manifest, "the report begins without a verdict") or {}).get("facts", {})
    return [re.sub(r"([\\`*_|<>])", r"\\\1", line) for line in str(facts.get("verdict", "")).splitlines()]


def compare_finished(pipeline: Pipeline, dag: "DAG", scheduler: "JobScheduler") -> None:
    """Compares the finished runs if a comparison was requested. The DAG and the scheduler are Snakemake's, after its last job."""
    if not any(job.rule.name == "compare_runs" for job in dag.needrun_jobs()):
        return
    unfinished = without_results(dag, scheduler)
    if unfinished and any(run not in unfinished for run in pipeline.finishing()):
        Path("logs").mkdir(exist_ok=True)
        subprocess.run(comparison_without(pipeline, unfinished))
        print_comparison()
    else:
        for line in by_reason(unfinished):
            print(line, file=sys.stderr)


def by_reason(unfinished: Mapping[str, str]) -> Iterator[str]:
    """A line for each reason: after Ctrl-C, or without data, hundreds of runs may have the same."""
    names: dict[str, list[str]] = {}
    for name, why in unfinished.items():
        names.setdefault(why, []).append(name)
    for why, of in names.items():
        more = f" and {len(of) - NAMES_SHOWN} more" if len(of) > NAMES_SHOWN else ""
        yield f"{', '.join(of[:NAMES_SHOWN])}{more}: {why}"


def comparison_without(pipeline: Pipeline, unfinished: Mapping[str, str]) -> list[str]:
    """The command of the rule compare_runs for the runs that have results; it says why the others have none."""
    evaluated = [run for run in pipeline.finishing() if Path(pipeline.manifest("evaluate_model", run)).is_file()]
    runs = [run for run in evaluated if run not in unfinished]
    sets = [name for name in pipeline.on_further_sets(runs) if name not in unfinished]
    decisions = [path for decision in pipeline.decisions if Path(path := pipeline.manifest(*decision)).is_file()]
    command = [*shlex.split(launching.keep_log(show=False)), str(LOG)]
    command += [*shlex.split(launching.python()), str(SCRIPTS / "compare_runs.py"), "--output", pipeline.manifest("compare_runs")]
    command += ["--settings", pipeline.stages["compare_runs"].settings_file(""), "--runs-root", f"{RESULTS}/runs", "--runs", *runs]
    command += ["--sets", *sets, "--decisions", *decisions]
    return [*command, "--unfinished", *(f"{name}: {why}" for name, why in unfinished.items())]


def without_results(dag: "DAG", scheduler: "JobScheduler") -> dict[str, str]:
    """The reason by run, `train_model failed: RuntimeError: ...`, or by `run/evaluation set` if the run itself has a result."""
    left = set(dag.needrun_jobs())
    last = {job_name(job.wildcards): job for job in left if evaluates(job.rule.name)}
    last = {name: job for name, job in last.items() if name == run_of(name) or run_of(name) not in last}
    last |= {job.wildcards.run: job for job in left if job.rule.name in parts_of("train_model") and job.wildcards.run not in last}
    return {name: _why(_with_all_before(job, dag, left), dag, scheduler) for name, job in sorted(last.items())}


def _with_all_before(job: "Job", dag: "DAG", left: "set[Job]") -> "list[Job]":
    """The job and the unfinished ones that it waits for."""
    found = [job]
    for each in found:
        found += [before for before in dag.dependencies[each] if before in left and before not in found]
    return found


def _why(jobs: "list[Job]", dag: "DAG", scheduler: "JobScheduler") -> str:
    for state, among in (("failed", scheduler.failed), ("interrupted", scheduler.running)):
        if found := [job for job in jobs if (dag.get_job_group(job) or job) in among]:
            job = max(found, key=lambda each: _written(Path(each.log[0])))  # of a group, which fails as a whole, the one that ran last
            if state == "interrupted" and not Path(job.log[0]).exists():
                return f"{job.rule.name} had not begun"
            return f"{job.rule.name} {state}: {last_error(Path(job.log[0]), folder_of_job(job.rule.name, job.output[0]))}"
    return "not started"


def _written(log: Path) -> float:
    return log.stat().st_mtime if log.exists() else 0.0


def note_reasons(jobs: "Iterable[Job]", reason_of: "Callable[[Job], object]", results: Path) -> None:
    """Records the reason of every job when a workflow starts: `runs/<run>/reasons.json` has the latest one of each stage, and the sets to evaluate on."""
    by_run: dict[str, JsonObject] = {}
    for job in jobs:
        wildcards, stage = dict(job.wildcards.items()), job.rule.name
        if run := wildcards.get("run"):
            noted = by_run.setdefault(run, {})
            further = [job_name(job.wildcards).partition("/")[2]] if evaluates(stage) else []
            sets = [*noted.get(stage, {}).get("sets", ()), *filter(None, further)]
            noted[stage] = {"reason": str(reason_of(job)), "time": time.time()} | ({"sets": sets} if sets else {})
    for run, reasons in by_run.items():
        path = results / "runs" / run / "reasons.json"
        earlier = read_if_intact(path, "it is written again, without the reasons of earlier starts") or {}
        write_checked(path, earlier | hidden_in(reasons), mode=PRIVATE_FILE)
