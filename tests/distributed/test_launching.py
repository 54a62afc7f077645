"""Processes started by another launcher than torchrun, and the ranks they read from the environment."""

import os
import subprocess
from pathlib import Path

import limits
import pytest
from distributed.running import MODEL, REPOSITORY

from snaketrain.config.schema import Compute, Train
from snaketrain.orchestration import launching
from snaketrain.runtime.ranks import Ranks
from snaketrain.runtime.stages import settings_words


def start(compute: Compute, data: Path, folder: Path) -> subprocess.CompletedProcess:
    script = REPOSITORY / "workflow/scripts/train_model.py"
    settings = {"train": Train(batch_size=16, epochs=1, learning_rate=1e-3).as_json, "model": MODEL.as_json}
    words = [
        script,
        "--run-name",
        "test",
        "--data",
        data,
        "--output",
        folder / "manifest.json",
        "--log-every",
        "1",
        *settings_words(folder, "train_model", settings),
    ]
    quoted = " ".join(f"'{word}'" for word in words)
    return subprocess.run(
        ["bash", "-c", f"{launching.launch(compute, in_slurm_job=False)} {quoted}"],
        capture_output=True,
        text=True,
        timeout=limits.seconds(120),
    )


def test_a_launch_command_that_starts_no_processes_is_reported(data, tmp_path):
    done = start(Compute(processes=2, launcher="env", launch_command="env", device="cpu"), data, tmp_path)
    assert done.returncode == 1
    assert "none of OMPI_COMM_WORLD_RANK, PMI_RANK" in done.stderr


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Ranks()),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, Ranks(3, 4, 1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Ranks()),  # a job script, which is not one of the processes
        ({"SNAKETRAIN_RANKS": "environment", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}, Ranks(5, 8, 1, 0)),
        ({"SNAKETRAIN_RANKS": "environment", "PALS_RANKID": "5", "PALS_SIZE": "8", "PALS_LOCAL_RANKID": "1"}, Ranks(5, 8, 1, 0)),
        (
            {"SNAKETRAIN_RANKS": "environment", "PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            Ranks(1, 2, 1, 2),
        ),
        (  # Cray MPICH under PALS
            {"SNAKETRAIN_RANKS": "environment", "PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PALS_LOCAL_RANKID": "1"},
            Ranks(5, 8, 1, 0),
        ),
        ({"SNAKETRAIN_RANKS": "environment", "PMI_RANK": "5", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "2"}, Ranks(5, 8, 2, 0)),
        (  # srun --mpi=pmi2
            {"SNAKETRAIN_RANKS": "environment", "PMI_RANK": "5", "PMI_SIZE": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"},
            Ranks(5, 8, 1, 0),
        ),
        (  # mpiexec in a job's script, whose own number all of them see
            {"SNAKETRAIN_RANKS": "environment", "PMI_RANK": "5", "PMI_SIZE": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
            Ranks(5, 8, None, 0),
        ),
        ({"SNAKETRAIN_RANKS": "environment", "PMI_RANK": "0", "PMI_SIZE": "1"}, Ranks(0, 1, 0, 0)),
    ],
)
def test_ranks_of_launchers(monkeypatch, environment, expected):
    for name in [name for name in os.environ if name.startswith(("RANK", "WORLD", "LOCAL", "SLURM_", "PMI_", "PALS_", "OMPI_", "MPI_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Ranks.of_environment() == expected


def test_a_gpu_is_not_guessed():
    assert Ranks(1, 2, 1, 2).gpu == 1
    with pytest.raises(SystemExit, match="process 5 of 8 does not know which GPU .* set LOCAL_RANK"):
        _ = Ranks(5, 8, None).gpu


def test_the_host_of_rank_0_is_found_or_requested(monkeypatch, tmp_path):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert Ranks(1, 2, 1, 2)._first_host() == "127.0.0.1"
    (tmp_path / "nodes").write_text("first\nfirst\nsecond\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    assert Ranks(2, 4, 0, 2)._first_host() == "first"
    monkeypatch.delenv("PBS_NODEFILE")
    with pytest.raises(SystemExit, match="export MASTER_ADDR"):
        Ranks(2, 4, 0, 2)._first_host()
