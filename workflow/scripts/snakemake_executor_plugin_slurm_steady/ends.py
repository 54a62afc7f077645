"""Why a job failed, where its state and its log give it away. What would fail again, or was cancelled by somebody, is not retried."""

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady.following import Following
from snaketrain.runtime.processes import OUT_OF_MEMORY
from snaketrain.slurm.client import Slurm, SlurmError

LOG_BYTES = 200_000  # the end of a log, which holds all starts of a job
NEW_START = re.compile(r"^job \d+: \d+ process(?:es)? on each of .*$", re.M)  # launch_slurm.py again, after a requeue
MEMORY = re.compile(
    rf"^.*(?:{OUT_OF_MEMORY}(?P<ours>.*)|exceeded memory limit \((?P<used>\d+) > (?P<limit>\d+)\).*|oom[-_]kill event.*)$", re.M
)
NO_FOLDER = re.compile(r"couldn't chdir to `")
NO_PYTHON = re.compile(rf"^\S*slurm_script: .*{re.escape(sys.executable)}: (?P<why>.*)$", re.M)  # of the shell that runs a job's script
NO_CONFIGURATION = re.compile(
    "Could not establish a configuration source|Unable to process configuration file|fetch_config: DNS SRV lookup failed"
)


@dataclass(frozen=True)
class Failure:
    """What follows `SLURM job 41 (train_model wide) ...`, and whether another try may end otherwise."""

    what: str
    worth_retrying: bool
    node_unfit: bool = False  # the one that ran its script, on which another try would end the same way


def failure(slurm: Slurm, number: str, state: str, log: Path, asked_mb: int | None = None) -> Failure | None:
    """None if neither state nor log give a reason away."""
    text = end_of(log)
    sign = last_memory_line(text or "")
    if state == "OUT_OF_MEMORY" or sign:
        return of_memory(slurm, number, sign, asked_mb)
    if state == "CANCELLED":
        return Failure("was cancelled and is not retried: start snakemake again to resume it", worth_retrying=False)
    if state == "FAILED" and (text is None or NO_FOLDER.search(text)):
        how = "was started in another folder" if text else f"left no log at {log}"
        return Failure(
            f"{how}: its node probably does not see the working directory {os.getcwd()}. Check with `srun ls -d {os.getcwd()}`, and work in a folder "
            "that all nodes share",
            worth_retrying=True,
            node_unfit=True,
        )
    if state == "FAILED" and text and (missing := NO_PYTHON.search(text)):
        return Failure(f"could not start {sys.executable} on its node: {missing['why']}", worth_retrying=True, node_unfit=True)
    if text and NO_CONFIGURATION.search(text):
        return Failure(
            "found no configuration of SLURM on its node: export SLURM_CONF before snakemake is started, with a path that the nodes share, or ask "
            "for a link /etc/slurm/slurm.conf there",
            worth_retrying=False,
        )
    return None


def end_of(log: Path) -> str | None:
    """The end of a log, from the job's last start on; None if there is no log."""
    try:
        os.listdir(log.parent)  # NFS may know an older state of the folder, until it is read
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    starts = list(NEW_START.finditer(text))
    return text[starts[-1].start() :] if starts else text


def last_memory_line(text: str) -> re.Match[str] | None:
    found = list(MEMORY.finditer(text))
    return next((match for match in reversed(found) if match["ours"] or match["used"]), found[-1] if found else None)


def of_memory(slurm: Slurm, number: str, sign: re.Match[str] | None, asked_mb: int | None) -> Failure:
    details = [f"{asked_mb} MB were asked for on each node"] if asked_mb else []
    if sign and sign["ours"]:
        details.append(sign["ours"])
    elif sign and sign["used"]:
        details.append(f"{int(sign['used']) // 2**20} MB were in use, over a limit of {int(sign['limit']) // 2**20} MB")
    else:
        with contextlib.suppress(SlurmError, ValueError):  # most often there is no accounting
            if (used_mb := slurm.most_memory_mb(number)) is not None:
                details.append(f"{used_mb} MB were in use by a process")
    known = f" ({'; '.join(details)})" if details else ""
    if sign and "of the machine" in (sign["ours"] or ""):
        return Failure(f"may have been killed for its memory{known}: it is retried; if that happens again, raise compute.memory_mb", True)
    return Failure(
        f"was killed for its memory{known}. It would need as much again, so it is not retried: raise compute.memory_mb, or mem_mb in the profile "
        "for the other stages",
        worth_retrying=False,
    )


class Explained(Following):
    """Whose failed jobs say why they failed."""

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: object) -> None:
        if state := (job_info.aux or {}).get("state"):
            log, asked_mb = Path(job_info.aux["slurm_logfile"]), job_info.job.resources.get("mem_mb")
            if found := failure(self.slurm, job_info.external_jobid, state, log, asked_mb):
                msg = f"{msg} It {found.what}. {self.exclude_node_of(job_info) if found.node_unfit else ''}"
                if not found.worth_retrying:
                    job_info.job.attempt = job_info.job.restart_times + 1  # the last one that `retries` allows
        super().report_job_error(job_info, msg, **kwargs)

    def exclude_node_of(self, job_info: SubmittedJobInfo) -> str:
        """Let no further job run its script on the node on which this one could not."""
        try:
            node = self.slurm.allocation(job_info.external_jobid).script_host
        except SlurmError:
            return ""
        self._failed_nodes |= {node} - {""}  # the plug-in's, for `--exclude`
        return (
            f"Until snakemake is started again, jobs are submitted with --exclude={node}, unless compute.sbatch has its own. "
            if node
            else ""
        )
