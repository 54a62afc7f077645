"""`profiles/pbs` from the preparation to the comparison, where qsub and qstat are stand-ins that run jobs on this machine."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import limits
import pytest
from distributed.running import train

from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY, SNAKEMAKE, configuration, make_workspace
from snaketrain.config.schema import Model
from snaketrain.runtime.journal import read_events

QSUB = """
while getopts VN:q:A:j:o:l: option; do case $option in N) name=$OPTARG ;; o) logs=$OPTARG ;; '?') exit 2 ;; esac; done
echo "$*" >> "$HERE/submitted"
shift $((OPTIND - 1))
number=$(($(ls "$HERE/jobs" | wc -l) + 1))
mkdir "$HERE/jobs/$number" && cp "$1" "$HERE/jobs/$number/script"
setsid run_job "$number" "$logs/$name.o$number" > /dev/null 2>&1 &
echo "$number.stand-in"
"""
RUN_JOB = """
PBS_JOBID=$1.stand-in sh "$HERE/jobs/$1/script" > "$2" 2>&1
echo $? > "$HERE/jobs/$1/exit"
signal_job KILL "$1"  # PBS lets nothing outlive the job's script
"""
SIGNAL_JOB = """
kill -s "$1" $(grep --files-with-matches --no-messages --null-data --line-regexp "PBS_JOBID=$2.stand-in" /proc/[0-9]*/environ | cut -d/ -f3)
"""
QSTAT = """
[ "$1 $2" = "-x -f" ] && cd "$HERE/jobs/${3%.stand-in}" || exit 153
if [ -s exit ]; then printf '    job_state = F\\n    Exit_status = %s\\n' "$(cat exit)"; else echo '    job_state = R'; fi
"""


@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="needs mpiexec (Debian and Ubuntu: apt install mpich)")
def test_a_training_of_two_processes_outlives_its_walltime(tmp_path: Path, programs: Callable[..., None]):
    programs(qsub=QSUB, qstat=QSTAT, run_job=RUN_JOB, signal_job=SIGNAL_JOB)
    (tmp_path / "jobs").mkdir()
    compute = {"launcher": "env", "launch_command": "mpiexec -n {processes}", "processes": 2, "threads": 2, "device": "cpu"}
    config = configuration()
    config["compute"] = compute | {"minutes": 90, "memory_mb": 700}
    config["model"]["arguments"] |= {
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }  # two processes draw other masks than one
    config["tracking"]["log_every_steps"] = 1
    folder = make_workspace(tmp_path / "project", **config | {"runs": {"long": {"train.epochs": 4}}})
    words = [warm_python(), SNAKEMAKE, "--snakefile", REPOSITORY / "Snakefile", "--profile", REPOSITORY / "profiles/pbs"]
    with open(tmp_path / "printed", "w") as printed:
        running = subprocess.Popen([*words, "--seconds-between-status-checks", "1"], stdout=printed, stderr=printed, cwd=folder)

    def events(kind: str) -> list[dict]:
        journal = folder / "results/runs/long/training/journal.jsonl"
        return [event for event in (read_events(journal)[0] if journal.exists() else []) if event["event"] == kind]

    try:
        limits.until(lambda: events("train"), 240, running, (tmp_path / "printed").read_text)
        submitted = (tmp_path / "submitted").read_text().splitlines()
        subprocess.run(["signal_job", "TERM", str(len(submitted))], check=True)  # as at the end of the walltime
        assert running.wait(limits.seconds(240)) == 0, (tmp_path / "printed").read_text()
    finally:
        running.kill()
    stopped, finished = events("end")
    assert (stopped["status"], finished["status"]) == ("STOPPED", "FINISHED")
    assert [(event["processes"], event["resume_step"]) for event in events("attempt")] == [(2, 0), (2, stopped["step"])]
    assert 0 < stopped["step"] < finished["step"]
    alone = train(next(folder.glob("results/data/*/manifest.json")), tmp_path / "alone", model=Model(**config["model"]), epochs=4)
    assert {event["step"]: event["metrics"]["loss"] for event in events("train")} == pytest.approx(alone, rel=1e-5)
    assert json.loads((folder / "results/comparison/manifest.json").read_text())

    submitted = (tmp_path / "submitted").read_text().splitlines()
    trainings = [line for line in submitted if " -N train_model " in line]
    assert len(trainings) == 2 and " -l select=2:ncpus=2:mem=700mb -l walltime=90:00 " in trainings[0]
    assert len(list((folder / "logs/pbs").iterdir())) == len(submitted)
