"""The command in front of a script: plain python for one process, torchrun for several; and the environment of both."""

import glob
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Compute
from snaketrain.config.schema.of_extras import hooks
from snaketrain.orchestration.rule_values import varying
from snaketrain.orchestration.strategy_declarations import strategy_info
from snaketrain.runtime.ranks import SETUP_FAILED

# --- The environment of a training's or an evaluation's Python on each node: variables, the site's setup, a container, a staged environment.
# It is a prefix of the command, after the launcher, so that it applies to every process on every node.

PROJECT = Path(__file__).resolve().parents[4]
TOOLS = PROJECT / "workflow/scripts/tools"
SLURM = "slurm-steady"  # Snakemake's executor in profiles/slurm
NO_ENVIRONMENTS = (
    "--software-deployment-method: no rule names a container, a conda environment or modules, so that it would do nothing. Set compute.container or "
    "compute.setup (docs/slurm.md), and leave it out, also in the profile."
)
OF_PLUGIN = (
    "executor: slurm is Snakemake's plug-in alone, which loses jobs when SLURM does not answer or snakemake is killed. Set `executor: slurm-steady` "
    "in the profile, with `slurm-steady-` for `slurm-` in the names of its settings, as in profiles/slurm."
)
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
    return [f"OMP_NUM_THREADS={threads}", "HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=true"]


def variables(compute: Compute) -> list[str]:
    return [*own_variables(compute), *(f"{name}={value}" for name, value in compute.environment.items())]


def python_words(compute: Compute) -> list[str]:
    """The command that starts Python for training and evaluation, in its environment; Python's arguments follow."""
    words = ["env", *variables(compute)]
    if compute.setup:
        words += ["bash", "-c", RUN_SETUP, "compute.setup", compute.setup]
    container = compute.container
    if container is None:
        words += [sys.executable, *through_extras(compute)]
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


def through_extras(compute: Compute) -> list[str]:
    """Scripts of extras that prepare a node and execute Python, with their arguments."""
    return [word for python_words in hooks("launching", "python_words") for word in python_words(compute)]


def trying(module: str) -> list[str]:
    """The command for a module of the package that builds models without memory, before any job and in a process of its own."""
    through = [word for words_for_trying in hooks("launching", "words_for_trying") for word in words_for_trying()]
    return ["env", *own_variables(Compute(threads=1)), sys.executable, *through, str(TOOLS / "without_gpus.py"), module]


def before_first_job(computes: list[Compute], executor: str) -> None:
    """What extras do where snakemake runs; `computes`: of the jobs that train or evaluate. An OSError says why nothing can be started."""
    for prepare in hooks("launching", "before_first_job"):
        prepare(computes, executor)


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


# --- The launcher in front of it, and what it asks of SLURM.

GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, and under Windows


def python() -> str:
    """The Python of stages that neither train nor evaluate."""
    return shlex.join(python_words(Compute(threads=1)))


def keep_log(show: bool) -> str:
    """The command in front of a stage's, which writes its log. `show`: also to the log of the job that a cluster runs."""
    return f"{shlex.quote(sys.executable)} {tool('keep_log.py')}{' --show' if show else ''}"


def launch(compute: Compute, in_slurm_job: bool) -> str:
    """The command in front of a script that trains or evaluates."""
    launcher = ("srun" if in_slurm_job else "torchrun") if compute.launcher == "auto" else compute.launcher
    here, on_node = shlex.join(["env", *own_variables(compute)]), shlex.join(python_words(compute))
    cpu = " --cpu" if compute.device == "cpu" else ""
    torchrun = f"--restarts {compute.restarts}{cpu} -- torchrun --nproc-per-node={compute.processes}"
    if compute.bind != "none":
        torchrun += f" --numa-binding={compute.bind}"
    if launcher == "srun":
        size = f"--nodes {compute.nodes} --threads {compute.threads} --save-before-limit {compute.save_before_limit_seconds}"
        return f"{here} {shlex.quote(sys.executable)} {tool('launch_slurm.py')} {size}{step_options(compute)} {torchrun}"
    if compute.processes == 1 and compute.bind == "none":
        return on_node
    if launcher == "env":
        # $$ is the process id of the job's shell: two jobs on one machine must not use the same port
        ranks = "SNAKETRAIN_RANKS=environment MASTER_PORT=$((20000 + $$ % 20000))"
        start = compute.launch_command.replace("{processes}", str(compute.processes))
        return f"{here} {ranks} {start} {on_node}"
    return f"{on_node} {tool('launch_local.py')} {torchrun}"


def step_options(compute: Compute) -> str:
    """Options of launch_slurm.py: the network interface, and the environment of the processes that it starts."""
    words = [f"--interface={compute.interface}"] if compute.interface else []
    if compute.environment or compute.setup or compute.container or through_extras(compute):
        words.append(f"--python={shlex.join(python_words(compute))}")
    return "".join(f" {shlex.quote(word)}" for word in [*words, *(f"--srun={option}" for option in srun_options(compute))])


def tool(name: str) -> str:
    return shlex.quote(str(TOOLS / name))


def out_of_reach(compute: Compute) -> str | None:
    """Why a training cannot run where Snakemake starts it itself."""
    if min(compute.node_counts) == 1 or compute.launcher == "srun":
        return None
    return (
        f"compute.nodes: is {compute.nodes}, but more than one node needs SLURM. Use `--profile profiles/slurm`, or set compute.nodes: 1 "
        "to train on this machine alone."
    )


def without_gpus(strategy: str, compute: Compute, executor: str, gres: str | None) -> str | None:
    """Why a training or an evaluation that needs GPUs will find none, if that is known now; `gres`: what its job requests from SLURM."""
    needs = f"train.strategy: `{strategy}`" if "cpu" not in strategy_info(strategy).devices else None
    if compute.required_device == "cuda":
        needs = "compute.device: is cuda, which" if compute.device == "cuda" else f"compute.gpus: is {compute.gpus}, which"
    elif compute.bind != "none":
        needs = f"compute.bind: is {compute.bind}, which"
    if needs and executor == SLURM and not any(words in f"{gres} {compute.sbatch}" for words in ("gpu", "--exclusive")):
        return (
            f"{needs} needs GPUs, but compute.gpus is 0, so SLURM would allocate none. Set compute.gpus: {compute.processes}, one for "
            "each of compute.processes; or, for whole nodes with all their GPUs, compute.sbatch: --exclusive and compute.device: cuda."
        )
    if needs and executor == "local" and not has_gpus():
        return f"{needs} needs GPUs, but this machine has none. Set compute.gpus: 0, compute.device: auto and a strategy such as `ddp`, or train on a machine with GPUs."
    return None


def has_gpus() -> bool:
    return any(glob.glob(pattern) for pattern in GPU_DEVICES)


def unable(run: str, strategy: str, compute: Compute, executor: str, gres: str | None) -> Iterator[str]:
    """Why a training or an evaluation cannot run, as far as is known before the first job."""
    if executor != SLURM and (problem := out_of_reach(compute)):
        yield problem
    if problem := without_gpus(strategy, compute, executor, gres):
        yield f"{problem} (run {run})"
    yield from surroundings_problems(compute, executor == SLURM)


def check_folder(folder: str) -> None:
    """Snakemake would read braces in the path of its lock as wildcards."""
    if set(folder) & set("{}"):
        raise ConfigurationError(
            [f"{folder}: Snakemake cannot work in a folder with braces in its path. Rename it, or work in another one."]
        )


def threads_of(computes: dict[str, Compute]) -> object:
    """The threads of a rule, by job."""
    return varying(computes, lambda job: computes[job].threads)


def resources_of(computes: dict[str, Compute], saves: bool) -> dict[str, object]:
    """The resources of a rule, by job."""
    needs = {job: asked(compute, saves) for job, compute in computes.items()}

    def resource(name: str) -> object:
        return varying(needs, lambda job: needs[job][name])

    return {name: resource(name) for name in asked(Compute(), saves)}


def asked(compute: Compute, saves: bool) -> dict[str, str | int | None]:
    """What a training or an evaluation requests from SLURM; other executors ignore it. `saves`: it saves before its time limit."""
    # a task for each core: of a range of nodes SLURM allocates at most as many as there are tasks on the smallest number of nodes
    size = [f"-N{compute.counts.asked}", f"--ntasks-per-node={compute.threads}", "-c1"]
    extra = [*size, "--open-mode=append"]  # SLURM would truncate the log of a requeued job
    if compute.evaluated_in_training_job:
        extra.append(f"-t{compute.minutes}")  # for jobs that it submits as one, Snakemake would add up the minutes
    if (saves or compute.evaluated_in_training_job) and compute.save_before_limit_seconds:
        extra.append(f"--signal=USR1@{compute.save_before_limit_seconds}")
    if compute.partition:
        extra.append(f"-p{shlex.quote(compute.partition)}")
    return {
        # with `mpi` the plugin puts no srun around the job's shell, which would leave no resources for ours. It then requires more than
        # one task per node; the options in `slurm_extra`, which come later, override that
        "mpi": "srun",
        "tasks_per_node": 2,
        "tasks_per_gpu": 0,
        "gres": f"gpu:{compute.gpus}" if compute.gpus else None,
        "mem_mb": compute.memory_mb,
        "runtime": compute.minutes,
        "slurm_extra": " ".join([*extra, *further_options(compute.sbatch)]),
    }


def further_options(sbatch: str) -> list[str]:
    """In short form and one word each: the plugin refuses the long form of options for which it has resources, but we have no settings."""
    short = {"--constraint": "-C", "--qos": "-q", "--account": "-A"}
    words, found = shlex.split(sbatch), []
    while words:
        name, _, value = words.pop(0).partition("=")
        if name in short or name in short.values():
            found.append(shlex.quote(short.get(name, name) + (value or (words.pop(0) if words else ""))))
        else:
            found.append(shlex.quote(f"{name}={value}" if value else name))
    return found
