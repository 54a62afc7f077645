"""Plans trunks: trainings of the steps that several runs have in common, which each of them then continues.

Runs share steps if they differ in nothing but the course of their learning rates, which makes a tree of their trainings. A trunk
follows the path that two of them share for longest, and saves a checkpoint wherever runs leave it. Its name says what it trains and
not who continues it, so that a run added to a sweep leaves the trunks of the others as they are.
"""

import ast
import bisect
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from snaketrain.config.references import PACKAGE, NotFound, find
from snaketrain.config.schema import Settings, Train
from snaketrain.config.schema.of_extras import constants, hooks
from snaketrain.extras.shared_steps.settings import shared_steps
from snaketrain.orchestration.definitions import Class, class_and_bases, class_attribute, definition_of
from snaketrain.runtime.manifests import digest
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training import schedules


class Stretch(NamedTuple):
    """Consecutive steps up to `last`, whose rates are a function of `rates` and of the step; with `phases.py` of an extra, their batches too."""

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
    for of_extra in hooks("phases", "stretches"):
        found = crossed(found, [Stretch(*each) for each in of_extra(train)])
    return tuple(found)


def crossed(rates: list[Stretch], phases: list[Stretch]) -> list[Stretch]:
    """Stretches in which neither the rates change nor the phase does; `phases`: those of an extra, none without its setting."""
    ends = sorted({each.last for each in rates + phases}) if phases else []
    found = [[next(each.rates for each in of if each.last >= end) for of in (rates, phases)] for end in ends]
    return [Stretch(json.dumps(both), end) for both, end in zip(found, ends, strict=True)] or rates


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


HOOKS = ("validation_epoch", "state_dict")  # of a task, as in trajectory.py
TASK = PACKAGE / "tasks/base.py"


def evaluations_may_count(train: Train) -> bool:
    """Also where files do not tell."""
    return train.trainer is not None or not all(observes_only(each.use) for each in train.callbacks) or overrides_hooks(train.task.use)


@functools.cache
def observes_only(callback: str) -> bool:
    try:
        file, name = find(callback)
    except NotFound:
        return False
    value = class_attribute(file, name, "observes_only")[1] if file else None
    return isinstance(value, ast.Constant) and value.value is True


@functools.cache
def overrides_hooks(task: str) -> bool:
    try:
        file, name = find(task, "tasks")
    except NotFound:
        return True
    classes = list(class_and_bases(definition_of(file.resolve(), name))) if file else [None]
    return any(each is None or (each.file != TASK and defines_hook(each)) for each in classes)


def defines_hook(found: Class) -> bool:
    """Unless the class itself declares `evaluates_only`."""
    names = {node.name for node in found.node.body if isinstance(node, ast.FunctionDef)}
    assigned = [(ast.unparse(target), node.value) for node in found.node.body if isinstance(node, ast.Assign) for target in node.targets]
    evaluates_only = any(name == "evaluates_only" and isinstance(value, ast.Constant) and value.value is True for name, value in assigned)
    return not evaluates_only and not {*names, *(name for name, _ in assigned)}.isdisjoint(HOOKS)


DECIDE_RATES = ("schedule", "warmup", "steps", "epochs")  # fields of `train`
LONGEST_WAIT = 2  # a trunk is at most so many times as long as what the first run to leave it has in common with the others


class Training(NamedTuple):
    """What a run trains."""

    run: str
    same: str  # digest of the settings but those that decide the rates, and of the data
    rates: tuple[Stretch, ...]


class Trunk(NamedTuple):
    """A training of the first steps of several runs."""

    name: str
    run: str  # one of them, whose settings it has
    branch_steps: tuple[int, ...]  # at which runs, or further trunks, leave it; it ends at the last
    rates: tuple[Stretch, ...]
    parent: str | None = None  # the trunk that it continues itself

    @property
    def last(self) -> int:
        return self.branch_steps[-1]


class Plan(NamedTuple):
    """All trunks by their names, each after its parent, and the trunk that each run continues."""

    trunks: dict[str, Trunk]
    of_run: dict[str, str]


class Fork(NamedTuple):
    """Where trainings leave a trunk; they may continue together."""

    trainings: list[Training]
    step: int = 0
    trunk: str | None = None


def training_of(name: str, run: Settings, data: str, settings: JsonObject) -> Training:
    """`settings`: those of its stage; `data`: the name of what it is trained on."""
    return Training(name, digest(data, same_settings(settings)), stretches(run.train))


def is_shareable(run: Settings) -> bool:
    """Whether all that decides the weights of a step is known before the training starts."""
    return shared_steps(run).at_least is not None and not run.train.early_stopping and not evaluations_may_count(run.train)


def same_settings(settings: JsonObject) -> JsonObject:
    """The settings in which runs that share steps agree."""
    by_step = (*DECIDE_RATES, *constants("phases", "FIELD"))
    return settings | {"train": {name: value for name, value in settings["train"].items() if name not in by_step}}


def trunk_of(training: Training, branch_steps: Sequence[int], parent: str | None = None) -> Trunk:
    """The first steps of a training as a trunk."""
    last = branch_steps[-1]
    rates = up_to(last, training.rates)
    return Trunk(f"{last}-steps-{digest(training.same, rates)[:8]}", training.run, tuple(branch_steps), rates, parent)


def tracked_settings(trunk: Trunk, settings: JsonObject) -> JsonObject:
    """The settings by which a trunk becomes stale, from those of its run: whatever run it is."""
    return same_settings(settings) | {"trunk": {"rates": [list(stretch) for stretch in trunk.rates]}}


def plan_trunks(trainings: Iterable[Training], runs: Mapping[str, Settings]) -> Plan:
    """The trunks of runs that are executed, and whose checkpoints are kept, in the same way."""
    plan, made = Plan({}, {}), set[str]()
    for alike in sorted(executed_alike(trainings, runs), key=len, reverse=True):
        if alike[0].same in made:  # these are equal up to rounding only, and a name stands for one of them
            continue
        made.add(alike[0].same)
        # in this order what two trainings share is the least that any neighbours between them share
        ordered = sorted(alike, key=lambda each: (each.rates, each.run))
        waiting = [Fork(list(members)) for _, members in groupby(ordered, key=lambda each: each.rates[0].rates)]
        at_least = shared_steps(runs[alike[0].run]).at_least
        while waiting and at_least is not None:
            waiting += grow(plan, waiting.pop(), at_least)
    return plan


def executed_alike(trainings: Iterable[Training], runs: Mapping[str, Settings]) -> list[list[Training]]:
    found: dict[tuple[str, str], list[Training]] = {}
    for training in trainings:
        run = runs[training.run]
        found.setdefault((training.same, f"{run.select!r} {run.compute!r} {shared_steps(run)!r}"), []).append(training)
    return list(found.values())


def grow(plan: Plan, fork: Fork, at_least: int) -> Iterator[Fork]:
    """Add the trunks along the path that two of the trainings share for longest; the forks at which others leave it."""
    common = [shared(one.rates, other.rates) for one, other in pairwise(fork.trainings)]
    if not common or max(common) <= fork.step:
        return
    stem, parent = common.index(max(common)), fork.trunk  # the stem is this training and the next
    leaves = leaving_steps(common, stem)
    trunks: dict[int, str | None] = {fork.step: fork.trunk}  # by the steps at which they can be left
    for steps in worthwhile(leaves, fork.step, at_least):
        trunk = trunk_of(fork.trainings[stem], steps, parent)
        plan.trunks[trunk.name] = trunk
        trunks |= dict.fromkeys(steps, trunk.name)
        parent = trunk.name
    for leave, beside in groupby(range(len(leaves)), key=lambda number: leaves[number]):
        step = max(each for each in trunks if each <= max(leave, fork.step))
        apart = [fork.trainings[number] for number in beside]
        if name := trunks[step]:
            plan.of_run.update({each.run: name for each in apart})
        if leave < common[stem]:
            yield Fork(apart, step, trunks[step])


def leaving_steps(common: list[int], stem: int) -> list[int]:
    """For each of several trainings, in order, how far it goes with the stem; `common`: what neighbours share."""
    found = [common[stem]] * (len(common) + 1)
    for number in range(stem - 1, -1, -1):
        found[number] = min(found[number + 1], common[number])
    for number in range(stem + 2, len(found)):
        found[number] = min(found[number - 1], common[number - 1])
    return found


def worthwhile(leaves: Sequence[int], start: int, at_least: int) -> Iterator[tuple[int, ...]]:
    """The steps at which trainings leave each of the trunks that follow one another, so that none waits long for steps of others."""
    *early, last = cut(sorted(leave for leave in leaves if leave > start))
    kept: list[list[int]] = []
    for steps in early:  # the stem takes these steps in any case
        if sum(step - start for step in steps) >= at_least:
            kept.append(steps)
            start = steps[-1]
    if sum(step - start for step in last) - (last[-1] - start) >= at_least:
        kept.append(last)
    return (tuple(sorted(set(steps))) for steps in kept)


def cut(leaves: list[int]) -> list[list[int]]:
    """Cut where a training would wait for too many steps of others."""
    found: list[list[int]] = []
    for step in leaves:
        if not found or step > LONGEST_WAIT * found[-1][0]:
            found.append([])
        found[-1].append(step)
    return found
