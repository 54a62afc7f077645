"""What rules say in Python: values that differ from job to job, and the options of scripts."""

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from snaketrain.config.schema import Compute, Settings
from snaketrain.config.schema.of_extras import hooks
from snaketrain.runtime.credentials import hidden

# --- Values of a rule that may differ from job to job, in the form that is cheapest for Snakemake.
#
# It calls a function a dozen times for each job, and inspects its signature each time: with a thousand runs that took a third of
# a dry run. So a value that all jobs share is not a function, and functions carry their parameters where Snakemake looks first.

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., object])

Parameters: TypeAlias = Mapping[str, inspect.Parameter]
TAKES_WILDCARDS = inspect.signature(lambda wildcards: None).parameters
TAKES_INPUT = inspect.signature(lambda wildcards, input: None).parameters
LIKE_A_WILDCARD = re.compile(r"\{\s*[.\w]")  # and not like JSON, as settings are


def job_name(wildcards: Iterable[str]) -> str:
    """The name of a job among those of its rule: that of the run, data set or model, or `run/evaluation set`; empty without wildcards."""
    return "/".join(wildcards)


def varying(names: Iterable[str], value: Callable[[str], Value]) -> Value | Callable[[Sequence[str]], Value]:
    """The value for each run, data set or model; just the value if it is the same for all and contains nothing like a wildcard."""
    values = {name: value(name) for name in names}
    found = list(values.values())
    if (
        found
        and found[0] is not None
        and not LIKE_A_WILDCARD.search(str(found[0]))
        and all(marked(each) == marked(found[0]) for each in found)
    ):
        return found[0]

    def of_job(wildcards: Sequence[str]) -> Value:
        return values[job_name(wildcards)]

    return with_parameters(TAKES_WILDCARDS, of_job)


def marked(value: object) -> list[tuple[object, object]]:
    """A value with the marks of its parts, such as Snakemake's `ancient`: texts are equal with and without."""
    return [(part, getattr(part, "flags", None)) for part in (value if isinstance(value, list) else [value])]


def untracked(value: Callable[[str], Value]) -> Callable[[Iterable[str], object], Value]:
    """A param that makes nothing stale: Snakemake does not compare what functions of `input` return."""

    def param(wildcards: Iterable[str], input: object) -> Value:
        return value(job_name(wildcards))

    return with_parameters(TAKES_INPUT, param)


def with_parameters(parameters: Parameters, function: Function) -> Function:
    setattr(function, "_overwrite_params", parameters)  # noqa: B010 - snakemake.common.FUNC_OVERWRITE_PARAMS_ATTR, unknown to its type
    return function


# --- Options of stages that run a model. None changes a result. Every path and every text is quoted as one word, so that it never reaches a
# shell as code; only `compute.launch_command` and `compute.setup` are shell text of the user's own.

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


def training_options(run: Settings) -> str:
    profile = run.compute.profile
    return options(
        {
            "experiment": hidden(run.tracking.experiment),
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
        }
        | {name: value for options_of in hooks("training", "options") for name, value in options_of(run).items()}
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
