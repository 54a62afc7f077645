"""The environment of a training's processes on each node. The container runtimes are stand-ins that record their arguments."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import limits
import pytest
from pydantic import ValidationError

import launch_slurm
from snaketrain.config.schema import Compute
from snaketrain.launch.slurm_step import srun_command
from snaketrain.orchestration import launching
from snaketrain.orchestration.launching import launch, python_words, surroundings_problems
from snaketrain.slurm.client import Allocation

SHOW = "import json, os, sys; print(json.dumps({'words': sys.argv[1:], 'environment': dict(os.environ)}))"
HOSTILE = """it's "$(touch PWNED)" `touch PWNED` ; {run} \\n, $HOME"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start Python as a node would, with `-c SHOW` and two arguments; programs of the node come first in PATH."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()

    def started(command: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=limits.seconds(60),
            env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **environment},
        )  # fmt: skip

    return started


def program(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def shown(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def of_one_process(compute: Compute) -> str:
    return f"{launch(compute, in_slurm_job=False)} -c {shlex.quote(SHOW)} one two"


def test_variables_reach_the_process_as_they_are(start, tmp_path):
    found = shown(start(of_one_process(Compute(environment={"NCCL_SOCKET_IFNAME": "ib0", "TEXT": HOSTILE, "LEVEL": 3, "EMPTY": ""}))))
    given = found["environment"]
    assert (given["NCCL_SOCKET_IFNAME"], given["TEXT"], given["LEVEL"], given["EMPTY"]) == ("ib0", HOSTILE, "3", "")
    assert (given["OMP_NUM_THREADS"], found["words"]) == ("2", ["one", "two"])
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"OMP_NUM_THREADS": "8"}, r"`environment.OMP_NUM_THREADS` cannot be set: set `threads`"),
        ({"RANK": "0"}, "the launcher sets it"),
        ({"SLURM_CONF": "/x"}, "SLURM sets it"),
        ({"MY-NAME": "x"}, "'MY-NAME' cannot be the name of a variable"),
        ({"A=B": "x"}, "cannot be the name of a variable"),
        ({"WANDB_API_KEY": "0123456789abcdef"}, r"`environment.WANDB_API_KEY` holds a secret, .* export it in the shell"),
        ({"https_proxy": "http://me:s3cret-9@proxy:3128"}, "holds a secret"),
        ({"NCCL_P2P_DISABLE": True}, "string"),
    ],
)
def test_variables_that_are_refused(environment, told):
    with pytest.raises(ValidationError, match=told) as error:
        Compute(environment=environment)
    assert "s3cret" not in str(error.value.errors()[0]["msg"]) and "abcdef" not in str(error.value.errors()[0]["msg"])


def test_setup_runs_before_the_program_in_its_shell(start):
    found = shown(start(of_one_process(Compute(setup='false || true\nexport WHERE="it\'s here"; cd /', environment={"A": "b"}))))
    assert (found["environment"]["WHERE"], found["environment"]["A"], found["environment"]["PWD"]) == ("it's here", "b", "/")


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        ("echo first\nls /no/such/folder\necho last", "exit status 2 on NODE, of `ls /no/such/folder`; the job ends."),
        ("module_of_nowhere load cuda", "exit status 127 on NODE, of `module_of_nowhere load cuda`; the job ends."),
        ("exit 0", "exit status 0 on NODE; the job ends."),
        ("prepare() { true; ls /nowhere; echo last; }; prepare", "exit status 2 on NODE, of `ls /nowhere`; the job ends."),
        ("if true; then", "on NODE; the job ends."),
        ("echo 'not closed", "on NODE; the job ends."),
    ],
)
def test_an_error_in_setup_ends_the_job_with_a_clear_line(start, setup, told):
    done = start(of_one_process(Compute(setup=setup)))
    assert done.returncode == 78
    assert done.stderr.splitlines()[-1].startswith("compute.setup: exit status ")
    assert done.stderr.endswith(f"{told.replace('NODE', os.uname().nodename)}\n")
    assert "words" not in done.stdout and "last" not in done.stdout


def test_apptainer_runs_python_with_gpus_folders_and_variables(start, tmp_path):
    """The stand-in clears the environment, as an image with its own variables may, and executes what follows the image."""
    program(
        tmp_path,
        "apptainer",
        'printf "%s\\n" "$@" > asked; while [ "$1" != image.sif ]; do shift; done; shift; exec env -i PATH=$PATH "$@"',
    )
    program(tmp_path, "python-inside", f'exec {sys.executable} "$@"')
    container = {"image": "image.sif", "binds": ["/data:/mnt:ro"], "python": "python-inside"}
    (tmp_path / "elsewhere").mkdir()
    compute = Compute(container=container, gpus=1, environment={"NCCL_IB_HCA": "mlx5_0,mlx5_1"}, setup="echo set up")
    done = start(of_one_process(compute))
    given = shown(done)["environment"]
    assert (given["NCCL_IB_HCA"], given["OMP_NUM_THREADS"], given["PYTHONNOUSERSITE"]) == ("mlx5_0,mlx5_1", "2", "1")
    binds = ["--bind", str(tmp_path), "--bind", str(launching.PROJECT), "--bind", "/data:/mnt:ro"]
    assert (tmp_path / "asked").read_text().splitlines()[: 3 + len(binds)] == ["exec", "--nv", *binds, "image.sif"]
    assert done.stdout.startswith("set up"), "on the node, where `module load apptainer` belongs"


def test_results_that_are_a_link_are_bound_too(tmp_path, monkeypatch):
    for name in ("here", "scratch"):
        (tmp_path / name).mkdir()
    (tmp_path / "here/results").symlink_to(tmp_path / "scratch")
    monkeypatch.chdir(tmp_path / "here")
    assert launching.own_folders() == [str(tmp_path / "here"), str(launching.PROJECT), str(tmp_path / "scratch")]


def test_without_gpus_apptainer_asks_for_none():
    assert "--nv" not in python_words(Compute(container="image.sif"))
    assert "--nv" in python_words(Compute(container="image.sif", sbatch="--gpus-per-node=a100:4"))


def step(compute: Compute) -> list[str]:
    """The srun command of a job on two nodes."""
    words = shlex.split(launch(compute, in_slurm_job=True))
    options = words[next(i for i, word in enumerate(words) if word.endswith("launch_slurm.py")) + 1 :]
    size = launch_slurm.node_size(launch_slurm.arguments([*options, "x.py", "--output", "x/manifest.json"]))
    return srun_command(Allocation("7", 0, ("a1", "a2")), ["a1", "a2"], size, "a1:2345", ["x.py", "--output", "f/manifest.json"])


def test_under_slurm_surroundings_are_inside_the_step_of_each_node(start, tmp_path):
    """The stand-in for srun executes the step's command as a node does."""
    program(tmp_path, "srun", 'while [ "$1" != env ]; do shift; done; exec "$@"')
    compute = Compute(nodes="2", processes=2, threads=4, environment={"TEXT": HOSTILE}, setup=f"export QUOTED={shlex.quote(HOSTILE)}")
    command = step(compute)
    agent = next(i for i, word in enumerate(command) if word.endswith("/torchrun"))
    found = shown(start(shlex.join([*command[:agent], "-c", SHOW, *command[agent + 1 :]])))
    assert found["environment"]["TEXT"] == found["environment"]["QUOTED"] == HOSTILE
    assert found["environment"]["OMP_NUM_THREADS"] == "2"
    assert found["words"][-3:] == ["x.py", "--output", "f/manifest.json"]
    assert not (tmp_path / "PWNED").exists()


def test_pyxis_is_configured_by_options_of_srun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = step(Compute(nodes="2", container={"image": "nvcr.io#nvidia/pytorch:24.10-py3", "runtime": "pyxis", "binds": ["/data"]}))
    project = launching.PROJECT
    assert command[: command.index("env")][-3:] == [
        "--container-image=nvcr.io#nvidia/pytorch:24.10-py3",
        f"--container-mounts={tmp_path}:{tmp_path},{project}:{project},/data:/data",
        f"--container-workdir={tmp_path}",
    ]
    agent = next(i for i, word in enumerate(command) if word.endswith("/torchrun"))
    assert command[agent - 1] == "python3" and sys.executable not in command and "apptainer" not in command


def test_without_surroundings_a_log_begins_with_a_short_command():
    assert "--python" not in launch(Compute(nodes="2"), in_slurm_job=True)


@pytest.mark.parametrize(
    ("container", "under_slurm", "told"),
    [
        ("./nowhere.sif", True, "compute.container.image: ./nowhere.sif does not exist"),
        ({"image": "x", "runtime": "pyxis"}, False, "compute.container.runtime: is pyxis, which needs SLURM"),
        ("docker://pytorch/pytorch", True, None),
        ({"image": "nvcr.io#nvidia/pytorch", "runtime": "pyxis"}, True, None),
    ],
)
def test_problems_of_a_container_are_reported_before_the_first_job(container, under_slurm, told):
    found = list(surroundings_problems(Compute(container=container), under_slurm))
    assert (found == []) if told is None else (len(found) == 1 and found[0].startswith(told))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"container": {"image": "x", "runtime": "pyxis"}, "launcher": "torchrun"}, "needs srun"),
        ({"container": "--x"}, "begins with a dash"),
        ({"container": {"image": "x", "binds": ["data"]}}, "is not an absolute path"),
    ],
)
def test_contradictions(settings, told):
    with pytest.raises(ValidationError, match=told):
        Compute(**settings)
