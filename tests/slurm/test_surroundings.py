"""Trainings from a copy of the environment on each node's disk, and in containers, to their end; one of them in a single job with its evaluation.

The container runtimes are stand-ins: they note what they are given, and start Python on the node.
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pipeline.workspace import configuration, make_workspace, sentences

from slurm.lab import Workflow

NOTES = """
import os, sys
if "SLURM_STEP_ID" in os.environ:
    with open(os.environ["NOTED"], "a") as notes:
        notes.write(f"{sys.prefix} {' '.join(sys.orig_argv[1:])}\\n")
"""
APPTAINER = """
printf '%s ' "$@" >> "$NOTED.apptainer"; echo >> "$NOTED.apptainer"
while [ "$1" != image.sif ]; do shift; done
shift
exec "$@"
"""
SRUN = """
words=()
for word in "$@"; do
    case $word in --container-*) echo "$word" >> "$NOTED.pyxis" ;; *) words+=("$word") ;; esac
done
exec {srun} "${{words[@]}}"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A small one that uses the packages of ours; each Python that starts from it, or from a copy of it, in a step of SLURM notes that."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (packages / "sitecustomize.py").write_text(NOTES)
    return folder


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory) -> Iterator[Path]:
    """Stand-ins for container runtimes, first in PATH, and the folder of their notes; a SLURM plugin removes the options of pyxis from those of srun."""
    tmp_path = tmp_path_factory.mktemp("runtimes")
    (tmp_path / "bin").mkdir()
    srun = subprocess.run(["which", "srun"], capture_output=True, text=True, check=True).stdout.strip()
    for name, text in {"apptainer": APPTAINER, "srun": SRUN.format(srun=srun)}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
        monkeypatch.setenv("DISK", str(tmp_path))
        yield tmp_path


@pytest.fixture(scope="module")
def finished(cluster, environment, runtimes, tmp_path_factory) -> Path:
    """The workflow's folder, with what the stand-ins noted beside it."""
    tmp_path = runtimes
    (tmp_path / "local").mkdir()
    python, folder = environment / "bin/python", tmp_path / "workspace"
    config = configuration() | {"predict": {"new": {"path": "new.csv"}}}
    config["compute"] = {"nodes": "2", "threads": 2, "device": "cpu", "memory_mb": 1500, "minutes": 20}
    inside = {"image": "image.sif", "binds": ["/tmp:/mnt:ro"], "python": str(python)}
    config["runs"] = {
        "staged": {"compute.stage_environment": "$DISK/local"},
        "apptainer": {
            "compute.container": inside,
            "compute.setup": "echo set up on the node",
            "compute.evaluation": {"in_training_job": True},
        },
        "pyxis": {"compute.container": inside | {"runtime": "pyxis"}},
    }
    config["tracking"]["register_models"] = True
    make_workspace(folder, **config)
    (folder / "new.csv").write_text("text\n" + "".join(f"{text}\n" for text, _ in sentences(20)))
    ends = [f"{run}/evaluation" for run in config["runs"]] + ["staged/predictions"]
    Workflow(folder, *(f"results/runs/{end}/manifest.json" for end in ends), python=python).finish()
    return folder


@pytest.mark.slow
def test_runs_finish_in_staged_environments_and_in_containers(finished):
    folder, tmp_path = finished, finished.parent
    copy = tmp_path / f"local/snaketrain-{os.getuid()}"
    noted = [line for line in (tmp_path / "noted").read_text().splitlines() if "/runs/staged/" in line]
    for script in ("train_model.py", "evaluate_model.py", "predict_inputs.py"):
        ranks = [line for line in noted if re.match(rf"\S+ (-u )?\S+/{script} ", line)]
        assert ranks and all(line.startswith(f"{copy}/") for line in ranks), script
    assert len([path for path in copy.iterdir() if path.is_dir()]) == 1, "two nodes and three jobs share one copy"

    started = Path(f"{tmp_path}/noted.apptainer").read_text().splitlines()
    binds = f"exec --bind {folder} --bind {Path(__file__).parents[2]} --bind /tmp:/mnt:ro image.sif env "
    assert started and all(line.startswith(binds) and "/staged/" not in line and "/pyxis/" not in line for line in started)
    assert {script for line in started for script in ("train_model.py", "evaluate_model.py") if script in line} == {
        "train_model.py",
        "evaluate_model.py",
    }
    told = set(Path(f"{tmp_path}/noted.pyxis").read_text().splitlines())
    assert {"--container-image=image.sif", f"--container-workdir={folder}"} < told and len(told) == 3


@pytest.mark.slow
def test_selection_and_evaluation_in_the_trainings_job_on_all_its_nodes(finished):
    """Its model is exported there as well, and the best one registered where snakemake runs, without a job."""
    (log,) = finished.glob("logs/slurm/*apptainer*/**/*.log")
    assert log.parent.name == "group_apptainer_evaluate_model_select_checkpoint_train_model"
    assert log.read_text().splitlines().count("set up on the node") == 4, "on two nodes, before training and evaluation"
    found, expected = (finished / "results/runs" / run for run in ("apptainer", "staged"))
    metrics = [json.loads((run / "evaluation/test_results.json").read_text())["metrics"] for run in (found, expected)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
    exported = {path.name for path in (found / "selection/model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= exported
    with closing(sqlite3.connect(finished / "mlflow.db")) as store:
        assert store.execute("select count(*) from model_versions").fetchone() == (1,), "of three equal models"
    stages = {path.relative_to(finished / "logs/slurm").parts[0] for path in finished.glob("logs/slurm/**/*.log")}
    # beside a run with `group`, Snakemake has no local rules: the others are selected in a job
    others = ("prepare_data", "train_model", "select_checkpoint", "evaluate_model", "predict_inputs")
    assert stages == {log.parent.name, *(f"rule_{stage}" for stage in others)}
