"""How far trainings have the same learning rates, by their settings alone: neither torch nor the data are needed."""

import bisect
import inspect
import json
from collections.abc import Callable
from typing import NamedTuple

from snaketrain.config.schema import Train
from snaketrain.training import schedules


class Stretch(NamedTuple):
    """Consecutive steps up to `last`, whose rates are a function of `rates` and of the step."""

    rates: str
    last: int


def stretches(train: Train) -> tuple[Stretch, ...]:
    """Of a training from its first step to its last; none where the length or a schedule is not known before it starts."""
    schedule = schedule_named(train.schedule.use)
    if schedule is None or not train.steps or any(group.schedule for group in train.groups):
        return ()
    warmup = train.warmup_steps(train.steps)
    length = train.steps - warmup
    call = inspect.signature(schedule).bind(0, length, **train.schedule.arguments)
    call.apply_defaults()
    _, _, *arguments = call.args
    peak = bisect.bisect_left(range(length), True, key=lambda done: schedule(done, length, *arguments) < 1.0)
    decided_by = [train.schedule.use, *arguments, *([] if schedule in schedules.FOR_ANY_LENGTH else [length])]
    ends = ((f"warmup over {warmup}", warmup), ("peak", warmup + peak), (json.dumps(decided_by), train.steps))
    found: list[Stretch] = []
    for rates, last in ends:
        if last > (found[-1].last if found else 0):
            found.append(Stretch(rates, last))
    return tuple(found)


def schedule_named(use: str) -> Callable[..., float] | None:
    """One of `training/schedules.py`; schedules of torch and of the user are not imported here."""
    found = vars(schedules).get(use)
    return found if inspect.isfunction(found) else None


def shared(one: tuple[Stretch, ...], other: tuple[Stretch, ...]) -> int:
    """The last step up to which both have the same rates."""
    until = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours.rates != theirs.rates:
            return until
        if ours.last != theirs.last:
            return min(ours.last, theirs.last)
        until = ours.last
    return until


def up_to(step: int, parts: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
    """The stretches of the first steps."""
    begun = [part for number, part in enumerate(parts) if not number or parts[number - 1].last < step]
    return tuple(Stretch(part.rates, min(part.last, step)) for part in begun)
