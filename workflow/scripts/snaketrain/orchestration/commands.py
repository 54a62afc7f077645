"""The options of stages that run a model, which their rules insert into the commands. None of these changes a result.

The rules quote every path and every text as one word, so their contents never reach a shell as code. Only `compute.launch_command` and
`compute.setup` are shell text of the user's own.
"""

import shlex
from collections.abc import Mapping
from typing import TypeAlias

from snaketrain.config.schema import Compute, Settings
from snaketrain.runtime.credentials import hidden

Option: TypeAlias = str | int | float | bool | list[str] | None


def options(values: Mapping[str, Option]) -> str:
    """`--name=value` as one word, since a value may begin with a dash; `--name one two` for a list; `--name` for a switch that is on."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            words.append(f"--{name}={value}")
        elif value is True:
            words.append(f"--{name}")
        elif value:  # otherwise it is off, empty or not given
            words += [f"--{name}", *value]
    return shlex.join(words)


def training_options(run: Settings, branch_steps: tuple[int, ...] = ()) -> str:
    """`branch_steps`: of a trunk. It is no run, so MLflow has it in an experiment of its own."""
    profile, experiment = run.compute.profile, f"{run.tracking.experiment}{'-trunks' if branch_steps else ''}"
    return options(
        {
            "experiment": hidden(experiment),
            "device": run.compute.required_device,
            "keep-best-by": run.select.metric,
            "keep-best-mode": run.select.mode,
            "keep": run.compute.keep_checkpoints,
            "checkpoint-format": run.compute.checkpoint_format,
            "log-every": run.tracking.log_every_steps,
            "stall-seconds": run.compute.stall_seconds,
            "rank-files": run.compute.rank_files,
            "profile": f"{profile.first_step}:{profile.steps}" if profile else None,
            "resume-changed": run.compute.resume_changed,
            "same-versions": run.compute.rerun_on_upgrade,
            "reduce-batch-on-oom": run.compute.reduce_batch_on_oom,
            "loader-workers": loader_workers(run.compute),
            "notes": hidden(run.tracking.notes),
            "branch-steps": list(map(str, branch_steps)),
        }
    )


def inference_options(compute: Compute, batch_size: int | None = None) -> str:
    return options({"device": compute.required_device, "stall-seconds": compute.stall_seconds, "batch-size": batch_size})


def evaluation_options(compute: Compute) -> str:
    return f"{inference_options(compute)} {options({'loader-workers': loader_workers(compute)})}".rstrip()


def loader_workers(compute: Compute) -> str | None:
    """A number; with `auto` the largest."""
    if compute.loader_workers == "auto":
        return f"auto:{max(1, compute.threads // compute.processes)}"
    return str(compute.loader_workers) if compute.loader_workers else None
