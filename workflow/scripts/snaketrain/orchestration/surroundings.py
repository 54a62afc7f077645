"""The environment of a training's or an evaluation's Python on each node: variables, the site's setup, a container, a staged environment.

It is a prefix of the command, after the launcher, so that it applies to every process on every node.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from snaketrain.config.schema import Compute
from snaketrain.runtime.ranks import BIND, SETUP_FAILED

PROJECT = Path(__file__).resolve().parents[4]
TOOLS = PROJECT / "workflow/scripts/tools"
# The user's text is an argument, so that no quote in it ends ours; an `exit` in it must not end the job successfully
RUN_SETUP = """
trap 'code=$?; echo "compute.setup: exit status $code on $(uname -n)${failed:+, of \\`$failed\\`}; the job ends." >&2; exit SETUP_FAILED' EXIT
trap '[[ $BASH_COMMAND == "eval "* ]] || : "${failed:=$BASH_COMMAND}"' ERR
set -eE
eval "$1"
set +eE
trap - EXIT ERR
shift
exec "$@"
""".replace("SETUP_FAILED", str(SETUP_FAILED))


def own_variables(compute: Compute) -> list[str]:
    """`NAME=value` of what is set here for a stage's processes."""
    threads = max(1, compute.threads // compute.processes)
    # spinning threads of two processes on the same cores would slow each other down; after fetching, all files are on this machine
    found = [f"OMP_NUM_THREADS={threads}", "HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=true"]
    return found if compute.bind == "none" else [*found, f"{BIND}={compute.bind}"]


def variables(compute: Compute) -> list[str]:
    return [*own_variables(compute), *(f"{name}={value}" for name, value in compute.environment.items())]


def python_words(compute: Compute) -> list[str]:
    """The command that starts Python for training and evaluation, in its environment; Python's arguments follow."""
    words = ["env", *variables(compute)]
    if compute.setup:
        words += ["bash", "-c", RUN_SETUP, "compute.setup", compute.setup]
    container = compute.container
    if container is None:
        words += [sys.executable, *staging(compute)]
    elif container.runtime == "pyxis":  # srun has entered it already
        words += [container.python]
    else:
        binds = [word for folder in (*own_folders(), *container.binds) for word in ("--bind", folder)]
        words += [container.runtime, "exec", *(["--nv"] if with_gpus(compute) else []), *binds, container.image]
        # again, since variables of the image override those of the host; packages in ~/.local are not those of the image
        words += ["env", *variables(compute), "PYTHONNOUSERSITE=1", container.python]
    return words


def srun_options(compute: Compute) -> list[str]:
    """Options of srun for its plugin pyxis."""
    container = compute.container
    if container is None or container.runtime != "pyxis":
        return []
    mounts = [*(f"{folder}:{folder}" for folder in own_folders()), *(bind if ":" in bind else f"{bind}:{bind}" for bind in container.binds)]
    return [f"--container-image={container.image}", f"--container-mounts={','.join(mounts)}", f"--container-workdir={os.getcwd()}"]


def own_folders() -> list[str]:
    """Folders that a container must see: the working directory, this project, and the target of `results` if it is a link."""
    found: list[Path] = []
    for path in (Path.cwd(), PROJECT, Path("results").resolve()):
        if not any(path.is_relative_to(folder) for folder in found):
            found.append(path)
    return list(map(str, found))


def with_gpus(compute: Compute) -> bool:
    return compute.gpus > 0 or compute.device == "cuda" or "gpu" in compute.sbatch


def staging(compute: Compute) -> list[str]:
    return [str(TOOLS / "staged_python.py"), compute.stage_environment, "--"] if compute.stage_environment else []


def surroundings_problems(compute: Compute, under_slurm: bool) -> Iterator[str]:
    """Problems that are known before the first job."""
    container = compute.container
    if container is None:
        return
    if container.runtime == "pyxis" and not under_slurm:
        yield "compute.container.runtime: is pyxis, which needs SLURM. Use `--profile profiles/slurm`, or apptainer."
    if "/" in container.image and "://" not in container.image and "#" not in container.image and not Path(container.image).exists():
        yield f"compute.container.image: {container.image} does not exist. Paths are relative to the working directory, {os.getcwd()}."
    for folder in own_folders():
        if set(folder) & set(":,"):
            yield f"compute.container: {folder} cannot be bound into a container because of its colon or comma. Work in another folder."
