"""Say at which step the weights of two runs part, and why: settings, rates, data, code, starting weights, execution, skipped steps.

It reads what the trainings recorded and computes no step. Where nothing recorded explains that their losses differ, it says so.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.evaluation.journals import Curves, curves
from snaketrain.orchestration.command_line import begun_training
from snaketrain.runtime.journal import Event, executions, read_events
from snaketrain.runtime.manifests import Manifest, read_checked, read_manifest
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import JsonObject, shortened

if TYPE_CHECKING:
    from snaketrain.training.plan import Plan

MOST_NAMED = 8


class Cause(NamedTuple):
    step: int  # the first whose weights it changes
    what: str
    rounding: bool = False  # whether the weights differ by rounding alone


@dataclass(frozen=True)
class Recorded:
    """What a training has recorded."""

    name: str
    run: JsonObject  # run.json
    data: Manifest
    events: list[Event]

    @classmethod
    def read(cls, runs: Path, name: str) -> "Recorded":
        folder = begun_training(runs, name)
        run = read_checked(folder / "run.json")
        path = Path(run["data"]["path"])
        data = read_manifest(path if path.exists() else runs.parent / "data" / path.parent.name / path.name)
        if data.content != run["data"]["content"]:
            raise SystemExit(f"{data.path}: was prepared anew since {name} was trained on it. Start snakemake: it makes what is missing.")
        return cls(name, run, data, read_events(folder / "journal.jsonl")[0])

    @cached_property
    def settings(self) -> JsonObject:
        """Those of the training, without those of its data."""
        return {name: section for name, section in self.run["settings"].items() if name not in self.data.settings}

    @cached_property
    def plan(self) -> "Plan":
        from snaketrain.config.schema import Train
        from snaketrain.data.loading.examples import open_splits
        from snaketrain.training.plan import Plan

        train = Train.model_validate(self.settings["train"])
        return Plan.of(train, open_splits(self.data, train).train.lengths)

    @cached_property
    def curves(self) -> Curves:
        return curves(self.events)

    @property
    def last(self) -> int:
        """The last step that was logged."""
        return max((step for step, _ in self.curves.get("train/loss", [])), default=0)

    def skipped(self) -> set[int]:
        return {event["step"] for event in self.events if event.get("event") == "bad_step"}


def causes(one: Recorded, other: Recorded) -> list[Cause]:
    """By step: the first ones make the weights part."""
    found = [*by_settings(one, other), *by_inputs(one, other), *by_rates(one, other), *by_events(one, other)]
    return sorted(found, key=lambda cause: (cause.step, cause.rounding))


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def by_settings(one: Recorded, other: Recorded) -> Iterator[Cause]:
    from snaketrain.config.schema import Train
    from snaketrain.extras.shared_steps.trajectory import observers, observing_files, weight_code, weight_settings

    settings, code = [], []
    for side in (one, other):
        train = Train.model_validate(side.settings["train"])
        observing = observers(train) if train.callbacks else set()
        settings.append(by_name(weight_settings(side.settings, observing)))
        code.append(weight_code(side.run["code"], observing_files(side.settings, side.run["code"], observing)))
    for name in differing(*settings):
        yield Cause(1, f"{name}: {shown(settings[0].get(name))} and {shown(settings[1].get(name))}")
    if names := differing(*code):
        yield Cause(1, f"code: {shortened(names, MOST_NAMED)}")


def shown(value: object) -> str:
    return "not given" if value is None else str(value)


def by_inputs(one: Recorded, other: Recorded) -> Iterator[Cause]:
    from snaketrain.extras.shared_steps.trajectory import data_digest

    ours, theirs = ({role: content for role, content in side.run["inputs"].items() if role != "data"} for side in (one, other))
    for role in differing(ours, theirs):
        yield Cause(1, f"{role}: other weights to start from ({shown(ours.get(role))} and {shown(theirs.get(role))})")
    if data_digest(one.data, "train") != data_digest(other.data, "train"):
        yield Cause(1, f"data: {different_data(one.data, other.data)}")


def different_data(one: Manifest, other: Manifest) -> str:
    """The first example that differs, where the prepared files are still there; else the settings, and files, by name."""
    from snaketrain.data.loading import open_table, split_files

    files = [split_files(data, "train") for data in (one, other)]
    if not all(file.is_file() and file.suffix == ".arrow" for each in files for file in each):
        names = [*differing(by_name(one.settings), by_name(other.settings)), *differing(one.files, other.files)]
        return f"prepared otherwise ({shortened(names, MOST_NAMED)})"
    tables = [open_table(each) for each in files]
    sizes = [table.num_rows for table in tables]
    count = f"{sizes[0]:,} examples" if sizes[0] == sizes[1] else f"{sizes[0]:,} and {sizes[1]:,} examples"
    columns = [name for name in ("input_ids", "label", "target_ids") if all(name in table.column_names for table in tables)]
    rows = (zip(*(table[name] for name in columns), strict=True) for table in tables)
    for place, (ours, theirs) in enumerate(zip_longest(*rows)):
        if ours != theirs:
            texts = [repr(str(table["text"][place])[:60]) if place < size else "none" for table, size in zip(tables, sizes, strict=True)]
            lines = [f"line {table['line'][place]}" for table, size in zip(tables, sizes, strict=True) if place < size]
            return f"{count}; the first that differs is number {place}, {' and '.join(lines)}: {' and '.join(texts)}"
    return f"{count} with equal tokens and labels; {shortened(differing(one.files, other.files) or ['its facts'], MOST_NAMED)} differ"


def by_rates(one: Recorded, other: Recorded) -> Iterator[Cause]:
    """Where the learning rates, or the phases of the data, part."""
    from snaketrain.config.schema.of_extras import constants
    from snaketrain.extras.shared_steps.trajectory import BY_THE_RATES, step_content

    trains = [by_name(side.settings["train"]) for side in (one, other)]
    deciding = (*BY_THE_RATES, *constants("phases", "FIELD"), "groups")
    names = [name for name in differing(*trains) if name.partition(".")[0] in deciding]
    if not names:
        return
    plans = one.plan, other.plan
    for step in range(1, min(plan.steps for plan in plans) + 1):
        if step_content(plans[0], step, cadence=False) != step_content(plans[1], step, cadence=False):
            rates = [plan.learning_rate_at(step) for plan in plans]
            what = (
                f"learning rate {rates[0]:.6g} and {rates[1]:.6g}"
                if rates[0] != rates[1]
                else "rates of groups, or what batches are taken from"
            )
            why = ", ".join(f"train.{name} {shown(trains[0].get(name))} and {shown(trains[1].get(name))}" for name in names)
            yield Cause(step, f"{what}: {why}")
            return


def by_events(one: Recorded, other: Recorded) -> Iterator[Cause]:
    """What happened during the trainings."""
    for side in (one, other):
        for change in side.run.get("mixed") or ():
            yield Cause(change["step"] + 1, f"{', '.join(change['changed'])} changed in the middle of {side.name}")
    if skipped := one.skipped() ^ other.skipped():
        step = min(skipped)
        yield Cause(
            step,
            f"the update was skipped in {(one if step in one.skipped() else other).name}, for a non-finite loss or gradient, or a spike",
        )
    ours, theirs = executions(one.events), executions(other.events)
    for step in sorted({*ours, *theirs}):
        pair = [
            of_side[max(first for first in of_side if first <= step)]
            for of_side in (ours, theirs)
            if min(of_side, default=step + 1) <= step
        ]
        if len(pair) == 2 and (different := execution(*pair)):
            yield Cause(step, f"executed otherwise: {shortened(different, MOST_NAMED)}", rounding=True)
            return


def execution(ours: JsonObject, theirs: JsonObject) -> list[str]:
    one, other = ({name: value for name, value in each.items() if name != "versions"} | each["versions"] for each in (ours, theirs))
    return [f"{name} {shown(one.get(name))} and {shown(other.get(name))}" for name in differing(one, other)]


# --- what was logged


class Logged(NamedTuple):
    compared: int  # losses that both have
    equal_to: int  # the last step up to which all are equal, bit for bit
    step: int | None = None  # of the first that differs
    first: str = ""


def logged(one: Recorded, other: Recorded) -> Logged:
    """Of losses that can be equal: a line has the mean since the line before, and evaluations are of the development set."""
    from snaketrain.extras.shared_steps.trajectory import data_digest

    names = ["train/loss"] if one.run["log_every"] == other.run["log_every"] else []
    names += ["eval/loss"] if data_digest(one.data, "dev") == data_digest(other.data, "dev") else []
    points = [{(step, name): value for name in names for step, value in side.curves.get(name, [])} for side in (one, other)]
    both, equal_to = sorted(points[0].keys() & points[1].keys()), 0
    for step, name in both:
        ours, theirs = points[0][step, name], points[1][step, name]
        if ours != theirs and not math.isnan(ours + theirs):
            return Logged(len(both), equal_to, step, f"{name} at step {step}: {ours!r} and {theirs!r}")
        equal_to = step
    return Logged(len(both), equal_to)


def report(one: Recorded, other: Recorded) -> str:
    found, seen = causes(one, other), logged(one, other)
    lines = []
    if found:
        first = found[0].step
        here = [cause for cause in found if cause.step == first]
        how = "" if any(not cause.rounding for cause in here) else ", by rounding alone"
        lines += [f"{one.name} and {other.name} part at step {first}{how}:", *(f"  {cause.what}" for cause in here)]
        lines += [f"  and from step {cause.step}: {cause.what}" for cause in found if cause.step > first]
    else:
        lines.append(f"Nothing that is recorded makes {one.name} and {other.name} differ, up to step {min(one.last, other.last)}.")
    if not seen.compared:
        return "\n".join([*lines, "They have logged no loss at the same step."])
    if seen.step is None:
        lines.append(f"All {seen.compared:,} losses that both have logged are equal, to the bit.")
    else:
        lines.append(f"Logged losses are equal up to step {seen.equal_to}. The first that differs is {seen.first}.")
        if not found or 1 < found[0].step > seen.step:  # from step 1 on, the weights that it begins with may differ as well
            lines.append(
                "Nothing recorded explains that. On GPUs set train.deterministic; otherwise something changed that is not seen, such as a file that "
                "compiled code reads (docs/staleness.md)."
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, metavar="RUN", help="two runs of the results")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="results of the workflow (default: results)"
    )
    args = parser.parse_args()
    print(report(*(Recorded.read(args.results / "runs", name) for name in args.runs)))


if __name__ == "__main__":
    main()
