"""Trainings from a copy of the environment on each node's disk, and in containers, to their end.

The container runtimes are stand-ins: they note what they are given, and start Python on the node.
"""

import os
import re
import subprocess
import sys
import sysconfig
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


@pytest.fixture
def runtimes(tmp_path, monkeypatch) -> None:
    """Stand-ins for container runtimes, first in PATH; a SLURM plugin removes the options of pyxis from those of srun."""
    (tmp_path / "bin").mkdir()
    srun = subprocess.run(["which", "srun"], capture_output=True, text=True, check=True).stdout.strip()
    for name, text in {"apptainer": APPTAINER, "srun": SRUN.format(srun=srun)}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")


def test_runs_finish_in_staged_environments_and_in_containers(cluster, environment, runtimes, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    monkeypatch.setenv("DISK", str(tmp_path))
    (tmp_path / "local").mkdir()
    python, folder = environment / "bin/python", tmp_path / "workspace"
    config = configuration() | {"predict": {"new": {"path": "new.csv"}}}
    config["compute"] = {"nodes": "2", "threads": 2, "device": "cpu", "memory_mb": 1500, "minutes": 20}
    inside = {"image": "image.sif", "binds": ["/tmp:/mnt:ro"], "python": str(python)}
    config["runs"] = {
        "staged": {"compute.stage_environment": "$DISK/local"},
        "apptainer": {"compute.container": inside, "compute.setup": "echo set up on the node"},
        "pyxis": {"compute.container": inside | {"runtime": "pyxis"}},
    }
    make_workspace(folder, **config)
    (folder / "new.csv").write_text("text\n" + "".join(f"{text}\n" for text, _ in sentences(20)))
    ends = [f"{run}/evaluation" for run in config["runs"]] + ["staged/predictions"]
    Workflow(folder, *(f"results/runs/{end}/manifest.json" for end in ends), python=python).finish()

    copy = tmp_path / f"local/snaketrain-{os.getuid()}"
    noted = [line for line in Path(os.environ["NOTED"]).read_text().splitlines() if "/runs/staged/" in line]
    for script in ("train_model.py", "evaluate_model.py", "predict_inputs.py"):
        ranks = [line for line in noted if re.match(rf"\S+ -u \S+/{script} ", line)]
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
    (log,) = folder.glob("logs/slurm/rule_train_model/apptainer/*.log")
    assert log.read_text().splitlines().count("set up on the node") == 2
