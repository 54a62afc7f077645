"""Whether `train.freeze` and `train.groups` match parameters of the model, and whether the learning rates are numbers."""

import math
from collections.abc import Iterator
from functools import partial

from torch import nn

from snaketrain.checking import Findings
from snaketrain.config.errors import near, shown
from snaketrain.config.references import load
from snaketrain.config.schema import Settings, Train, Use
from snaketrain.config.schema.train import PLATEAU
from snaketrain.runtime.credentials import resolved
from snaketrain.training.optimizers import belongs, matches
from snaketrain.training.plan import schedule_of

ASSUMED_STEPS = 1000  # of a training whose data is not prepared yet
MOST_STEPS = 20_000  # that are looked at, one after the other, since a scheduler of torch has a state
SHOWN = 6  # names of parameters

Named = list[tuple[str, str, nn.Parameter]]  # the module, the parameter's name in it, the parameter


def pattern_problems(run: Settings, modules: dict[str, nn.Module]) -> Iterator[str]:
    """`modules`: as the task builds them, without adapters."""
    named: Named = [(name, key, parameter) for name, module in modules.items() for key, parameter in module.named_parameters()]
    if not run.model.adapters:  # whose names are known only in the training
        yield from _unknown(run.train, named)


def _unknown(train: Train, named: Named) -> Iterator[str]:
    """Patterns that match nothing, and groups that no parameter is left for, since the first that matches applies."""
    taken: dict[int, int] = {}  # by the identity of a parameter, the group
    given = {f"train.freeze.{n}": pattern for n, pattern in enumerate(train.freeze)}
    given |= {f"train.groups.{n}.match": group.match for n, group in enumerate(train.groups)}
    for where, pattern in given.items():
        if not any(matches(pattern, module, key) for module, key, _ in named):
            yield _unmatched(where, pattern, named)
    for number, group in enumerate(train.groups):
        matched = [parameter for module, key, parameter in named if belongs(parameter, group, module, key)]
        if matched and all(id(parameter) in taken for parameter in matched):
            others = " and ".join(
                f"train.groups.{each} ({train.groups[each].match!r})" for each in sorted({taken[id(parameter)] for parameter in matched})
            )
            yield f"train.groups.{number}.match: {shown(group.match)} only matches parameters that {others} takes first. Put this group before it, or remove it."
        for parameter in matched:
            taken.setdefault(id(parameter), number)


def _unmatched(where: str, pattern: str, named: Named) -> str:
    names = [key for _, key, _ in named]
    some = ", ".join(names if len(names) <= SHOWN else [*names[: SHOWN // 2], "...", *names[-SHOWN // 2 :]])
    suggestion = f"Did you mean '{found[0]}'? " if (found := near(pattern, names)) else ""
    return f"{where}: no parameter matches '{pattern}'. {suggestion}There are {len(names)}: {some}."


# --- rates


def check_rates(run: Settings, steps: int | None, findings: Findings) -> None:
    """`steps`: of the whole training, None where they are not known yet."""
    train = run.train
    total = train.steps if train.steps is not None else steps
    if total == 0:
        return
    known = total is not None
    after_warmup = max(1, (total or ASSUMED_STEPS) - train.warmup_steps(total or ASSUMED_STEPS))
    settings = {"train.schedule": train.schedule} | {
        f"train.groups.{n}.schedule": g.schedule for n, g in enumerate(train.groups) if g.schedule
    }
    for where, setting in settings.items():
        found = problems(where, setting, train.learning_rate, after_warmup, known)
        findings.report(*(findings.attempt(where, setting.use, partial(list[str], found), "Correct it, or its arguments") or ()))


def problems(where: str, setting: Use, learning_rate: float, steps: int, known: bool) -> Iterator[str]:
    """The first rate that is none, and what the rates together cannot be."""
    if setting.use == PLATEAU:
        yield from _plateau(where, setting, learning_rate)
        return
    schedule = schedule_of(setting, learning_rate)
    highest, of = 0.0, f"step {{}} of {steps}" + ("" if known else " (assumed)")
    named = f"{where}: `{setting.use}`" + (f" with {_shown(setting)}" if setting.arguments else "")
    ours = "." not in setting.use and ":" not in setting.use
    for done in range(min(steps, MOST_STEPS)):
        rate = schedule(done, steps)
        at = of.format(done + 1)
        if isinstance(rate, bool) or (not isinstance(rate, int | float) and not hasattr(rate, "__float__")):
            yield f"{named} gives {rate!r} at {at}, which is no number. Return the factor of the learning rate."
            return
        if not math.isfinite(rate := float(rate)):
            yield f"{named} gives {rate} at {at}. A factor of the learning rate must be finite."
            return
        if rate < 0:
            yield f"{named} gives {rate:g} at {at}: with a negative learning rate the loss is maximised. Give arguments that keep it at 0 or above."
            return
        if ours and rate > 1 + 1e-9:
            yield f"{named} gives {rate:g} at {at}, but train.learning_rate is the highest rate. Give arguments that keep the factor at 1 or below."
            return
        highest = max(highest, rate)
    if not highest:
        yield f"{named} gives 0 at each step, so that nothing is learnt. Correct its arguments."


def _plateau(where: str, setting: Use, learning_rate: float) -> Iterator[str]:
    """The scheduler is made, and lowers the rate once."""
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=learning_rate)
    scheduler = load(setting.use)(optimizer, **resolved(setting.arguments))
    for name in ("min_lrs", "factor"):
        value = getattr(scheduler, name, 0)
        for each in value if isinstance(value, list) else [value]:
            if not each >= 0:
                argument = "min_lr" if name == "min_lrs" else name
                yield f"{where}.arguments.{argument}: is {each:g}, and a learning rate cannot be negative. Give 0 or more."


def _shown(setting: Use) -> str:
    return ", ".join(f"{name} {value}" for name, value in setting.arguments.items())[:80]
