"""Replay some of a training's steps between its checkpoints, and say whether weights, optimizer state and logged losses are the same, bit for bit.

An interval lies between two neighbouring checkpoints that are kept; the first begins with the initial weights. Each is replayed in a
temporary folder (TMPDIR), with the code and packages that are there now, and the recorded settings, processes, threads and device.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import pairwise, starmap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.extras.reproduce.replaying import Recorded, Replay, parser_of_run, replayed
from snaketrain.runtime.journal import Event, duration
from snaketrain.runtime.manifests import Manifest, read_manifest, write_checked
from snaketrain.runtime.model_card import VERIFIED, write_card
from snaketrain.runtime.run_folder import damaged_log
from snaketrain.runtime.stages import previous_manifest


@dataclass
class Interval:
    """The steps after `first` up to `last`."""

    first: int
    last: int
    seconds: float = 0.0
    compared: int = 0  # tensors and figures
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"steps {self.first + 1} to {self.last}"


def main() -> int:
    args = arguments()
    recorded = Recorded(args.results, args.run)
    os.chdir(recorded.root)
    differs_now = recorded.tell_differences()
    drawn = draw(recorded, args.segments, args.seed)
    steps = sum(each.last - each.first for each in drawn)
    print(f"{args.run}: replays {len(drawn)} of {len(recorded.checkpoints) - 1} intervals, {steps} steps in all", flush=True)
    made = previous_manifest(recorded.folder)
    damage = [*filter(None, [made and damaged_log(made)]), *damaged_checkpoints(recorded, drawn)]
    for each in damage:
        print(each)
    try:
        verify(recorded, [each for each in drawn if not each.differences], args.jobs)
    except KeyboardInterrupt:
        print(f"{args.run}: interrupted; its replays were ended, and nothing is recorded", file=sys.stderr)
        return 130
    equal = [each for each in drawn if not each.differences]
    about = {"run": args.run, "identity": recorded.run["identity"], "time": time.time(), "seed": args.seed, "differs_now": differs_now}
    write_checked(recorded.folder / VERIFIED, about | {"damage": damage, "intervals": list(map(asdict, drawn))})
    in_card = " and the model card" if made and write_card_again(recorded, made) else ""
    print(
        f"{args.run}: {len(equal)} of {len(drawn)} intervals are equal, bit for bit, as training/{VERIFIED}{in_card} now say{'s' * (not in_card)}"
    )
    return int(bool(damage) or len(equal) < len(drawn))


def write_card_again(recorded: Recorded, training: Manifest) -> bool:
    """Whether there is a model of this training."""
    path = recorded.folder.relative_to(recorded.root).with_name("selection") / "manifest.json"
    if not path.is_file() or (selection := read_manifest(path)).inputs["training"] != training.content:
        return False
    write_card(training, read_manifest(recorded.run["paths"]["data"]), selection)
    return True


def arguments() -> argparse.Namespace:
    parser = parser_of_run(__doc__)
    parser.add_argument("--segments", type=int, default=5, help="how many intervals to draw and replay (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed by which they are drawn (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="how many replays run at once (default: %(default)s)")
    args = parser.parse_args()
    if min(args.segments, args.jobs) < 1:
        parser.error("--segments and --jobs must be at least 1")
    return args


def draw(recorded: Recorded, number: int, seed: int) -> list[Interval]:
    """Of those whose steps were computed as the last ones were, by which run.json goes; the others are told."""
    found, changed_at = [], max((change["step"] for change in recorded.run["mixed"]), default=-1)
    for interval in starmap(Interval, pairwise(recorded.checkpoints)):
        if interval.first <= changed_at:
            print(f"not replayed: {interval}, which were taken before settings or code were changed")
        elif otherwise := recorded.executed_otherwise(interval.first, interval.last):
            print(f"not replayed: {interval}, which were executed otherwise than the last ones: {'; '.join(otherwise)}")
        else:
            found.append(interval)
    if not found:
        raise SystemExit(f"{recorded.folder}: there is no checkpoint to which steps can be replayed. Train the run first.")
    return sorted(random.Random(seed).sample(found, min(number, len(found))), key=lambda each: each.first)


def damaged_checkpoints(recorded: Recorded, drawn: list[Interval]) -> list[str]:
    """What the digests of checkpoints tell; the intervals beside a damaged one are not replayed."""
    from snaketrain.training.checkpoints.publishing import damage

    found = []
    for step in sorted({step for each in drawn for step in (each.first, each.last) if step}):
        if what := damage(recorded.checkpoint(step)):
            found.append(f"step {step}: the checkpoint is damaged: {what}")
            for each in drawn:
                each.differences += [found[-1]] * (step in (each.first, each.last))
    return found


def verify(recorded: Recorded, intervals: list[Interval], jobs: int) -> None:
    """Replay each interval, and tell what differs in it."""
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        replays = [recorded.replay(each.first, each.last, Path(folder) / str(each.first)) for each in intervals]
        with closing(replayed(replays, jobs)) as ended:
            for replay in ended:
                (interval,) = (each for each in intervals if each.first == replay.first)
                interval.seconds = round(replay.seconds, 1)
                compare(interval, recorded, replay)
                if interval.differences and (otherwise := recorded.executed_otherwise(replay.first, replay.last, replay.events())):
                    interval.differences.append(f"executed otherwise: {'; '.join(otherwise)}")
                outcome = "DIFFERENT" if interval.differences else f"{interval.compared} tensors and figures are equal"
                print(f"{interval}: replayed in {duration(replay.seconds)}, {outcome}", *interval.differences, sep="\n  ", flush=True)
                shutil.rmtree(replay.folder)  # there may be little room for several


# --- What is compared.


def compare(interval: Interval, recorded: Recorded, replay: Replay) -> None:
    """The figures that were logged within an interval, by step, and what the checkpoint at its end holds, if it is kept."""
    from snaketrain.training.plan import folder_name

    then, now = (figures(events, interval, recorded.metrics) for events in (recorded.events, replay.events()))
    for step, name in sorted(then.keys() | now.keys()):
        here, there = repr(then.get((step, name))), repr(now.get((step, name)))  # as text, in which NaN is equal to itself
        if here != there:
            interval.differences.append(f"step {step}: {name} is {here} in the journal, and {there} replayed")
    folders = [folder / "checkpoints" / folder_name(interval.last) for folder in (recorded.folder, replay.made)]
    ours, theirs = map(contents, folders) if folders[0].is_dir() else ({}, {})
    interval.compared = len(then) + sum(map(len, ours.values()))
    for part in {**ours, **theirs}:
        one, other = ours.get(part, {}), theirs.get(part, {})
        unequal = {name: what for name in {**one, **other} if (what := difference(one.get(name), other.get(name)))}
        for name, what in list(unequal.items())[:1]:
            more = f", and {len(unequal) - 1} more of {part} differ" if len(unequal) > 1 else ""
            interval.differences.append(f"step {interval.last}: {part}: {name}: {what}{more}")


def figures(events: list[Event], interval: Interval, metrics: Collection[str]) -> dict[tuple[int, str], float]:
    """Losses, gradient norms, rates and metrics: not speeds, nor what callbacks add. Of a step that was taken again, the last line counts."""
    found: dict[tuple[int, str], float] = {}
    steps = range(interval.first + (interval.first > 0), interval.last + 1)  # with the evaluation of the initial weights
    for event in (each for each in events if each["event"] in ("train", "eval") and each["step"] in steps):
        names = [name for name in event["metrics"] if name.startswith("loss") or name in ("gradient_norm", "learning_rate", *metrics)]
        found |= {(event["step"], f"{event['event']}/{name}"): event["metrics"][name] for name in names}
    return found


def contents(checkpoint: Path) -> dict[str, dict[str, object]]:
    """Weights, their averages and the state of optimizers, by the file or folder that has them: tensors and numbers by name."""
    import torch
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    from snaketrain.training.checkpoints.rank_state import empty, stored

    found: dict[str, dict[str, object]] = {path.stem: {**load_file(path)} for path in sorted(checkpoint.glob("*.safetensors"))}
    for path in sorted(checkpoint.glob("*.optimizer.pt")):
        saved = torch.load(path, weights_only=True, mmap=True)
        moments = {f"{name}.{key}": value for name, state in saved["state"].items() for key, value in state.items()}
        found[path.stem] = moments | {"param_groups": saved["param_groups"]}
    for folder in sorted(each for each in checkpoint.iterdir() if each.is_dir()):  # in shards
        found[folder.name] = empty(stored(folder))
        load(found[folder.name], storage_reader=FileSystemReader(folder), no_dist=True)
        found[folder.name] |= {path.name: torch.load(path, weights_only=True) for path in sorted(folder.glob("*.groups.pt"))}
    return found


def difference(one: object, other: object) -> str:
    """Of the bits, in which 0.0 and -0.0 differ, and NaN is equal to itself; empty if there is none."""
    from torch import Tensor, uint8

    if not (isinstance(one, Tensor) and isinstance(other, Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)):
        return "" if repr(one) == repr(other) else f"{one!r:.80} in the checkpoint, and {other!r:.80} replayed"
    bits = [each.contiguous().reshape(-1).view(uint8) for each in (one, other)]
    unequal = (bits[0] != bits[1]).nonzero()
    if not len(unequal):
        return ""
    place = int(unequal[0]) // one.element_size()
    return f"element {place} is {one.reshape(-1)[place].item()!r} in the checkpoint, and {other.reshape(-1)[place].item()!r} replayed"


if __name__ == "__main__":
    sys.exit(main())
