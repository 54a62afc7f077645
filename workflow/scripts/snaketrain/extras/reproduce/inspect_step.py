"""Replay a run up to a step, and show what that step learns from: its rate, loss and gradient norm, and each of its examples.

The steps from the nearest checkpoint are replayed as they were taken; the step itself is computed in this process, on its whole batch. For
a run of several processes its figures are therefore equal up to rounding.

The loss and the gradient norm of an example are of its own mean loss, computed by itself with the weights before the step, and without
dropout. Weighted by what each counts (1, or its tokens), the mean of these losses is the loss of the batch, and the mean of the gradients
its gradient, except for what dropout changes. Of a loss that compares the examples of a batch with one another they are not shown.
"""

import argparse
import csv
import math
import os
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.config.errors import one_line
from snaketrain.extras.reproduce.replaying import Recorded, Replay, environment_of, losses, parser_of_run, replayed
from snaketrain.runtime.journal import duration
from snaketrain.runtime.manifests import Manifest, private, read_manifest

if TYPE_CHECKING:
    from snaketrain.strategies.losses import LossSums
    from snaketrain.training.plan import PlannedStep
    from snaketrain.training.trainer import Trainer

SHOWN = 60  # characters of a text in the table


class Example(NamedTuple):
    example: int
    loss: float
    gradient_norm: float
    counts: int  # by which its loss is weighted in the batch's
    place: str
    text: str


def main() -> int:
    args = arguments()
    recorded, table = Recorded(args.results, args.run), args.csv and args.csv.resolve()
    os.chdir(recorded.root)
    os.environ.update(environment_of(recorded.run))
    recorded.tell_differences()
    logged = losses(recorded.events)
    last = max([*logged, *recorded.checkpoints])
    if not 1 <= args.step <= last:
        raise SystemExit(
            f"--step: {args.step} is not one of the steps of {args.run} until its last checkpoint or line in the journal, {last}."
        )
    with tempfile.TemporaryDirectory(prefix="inspect-") as folder:
        examples = taken(reached(recorded, args.step, Path(folder)), args.step, logged.get(args.step))
    if examples:
        show(examples, args.examples)
    if table:
        with open(table, "w", encoding="utf-8", newline="", opener=private) as file:
            csv.writer(file).writerows([Example._fields, *examples])
    return 0


def arguments() -> argparse.Namespace:
    parser = parser_of_run(__doc__)
    parser.add_argument("--step", type=int, required=True, help="number of the step, from 1")
    parser.add_argument(
        "--examples", type=int, default=10, metavar="K", help="how many of the hardest examples to print (default: %(default)s)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="file to write all examples of the step to")
    return parser.parse_args()


def reached(recorded: Recorded, step: int, folder: Path) -> Replay:
    """A replay of the steps before this one, in whose folder the training can take it."""
    first = max(each for each in recorded.checkpoints if each < step)
    replay = recorded.replay(first, step - 1, folder)
    print(f"{recorded.name}: continues from step {first}, {step - 1 - first} steps before step {step}", flush=True)
    if first == step - 1:
        replay.prepare()
    else:
        for each in replayed([replay]):
            print(f"steps {first + 1} to {step - 1}: replayed in {duration(each.seconds)}", flush=True)
    return replay


def taken(replay: Replay, number: int, then: float | None) -> list[Example]:
    """Take the step in this process, before it compute each of its examples by itself, and print its figures; `then`: the loss in the journal."""
    trainer, data = trainer_of(replay)
    state, task = trainer.state, trainer.state.task
    trainer.resume()
    task.on_worker_start()
    trainer.callbacks.call("on_train_start", state)
    with trainer.planned.loading():
        planned = trainer.planned.take()
        task.on_epoch_start(planned.epoch, state.plain_modules())
        examples = each_example(trainer, planned, data)
        task.train_epoch(planned.epoch, iter([partial(trainer.train_step, planned)]))
    if (outcome := trainer.newest) is None:
        raise SystemExit(f"--step: the task has left out step {number}. Take another one.")
    state.step, rate, norm = number, outcome.learning_rate, outcome.gradient_norm.item()
    print(f"step {number}: learning rate {rate:.6g}, loss {mean_loss(outcome.losses, outcome.count)!r}, gradient norm {norm:.6g}")
    if then is None:
        print("the journal has no line of this step")
        return examples
    trainer.log(outcome)
    now, processes = losses(replay.events()).get(number), replay.run["environment"]["processes"]
    line = "the loss in its line of the journal" + ", the mean since the line before," * (replay.run["log_every"] > 1)
    why = f" (of {processes} processes then, of one now)" if processes > 1 else ""
    print(f"{line} is equal, bit for bit" if now == then else f"{line} was {then!r}, and is now {now!r}{why}")
    return examples


def trainer_of(replay: Replay) -> "tuple[Trainer, Manifest]":
    """Of this process alone, for the training in the folder of the replay; and the manifest of its data."""
    from snaketrain.config.schema import Model, Train, Use
    from snaketrain.data.loading.examples import open_splits
    from snaketrain.training.building import make_task, start_strategy
    from snaketrain.training.trainer import Trainer, TrainerOptions

    run = replay.run
    train, model = Train.model_validate(run["settings"]["train"]), Model.model_validate(run["settings"]["model"])
    read = {role: read_manifest(path) for role, path in run["paths"].items()}
    if (processes := run["environment"]["processes"]) > 1:
        divided = 1 if make_task(train).whole_batches else train.accumulate * processes  # each as large as one of a process
        train = train.model_copy(update={"strategy": Use(use="auto"), "accumulate": divided})
    strategy = start_strategy(train, run["device"], run["environment"]["precision"])
    weights, initial = (read[role].model_files if role in read else None for role in ("model", "initial"))
    options = TrainerOptions(log_every=run["log_every"], resume_changed=True)  # on one process, some settings are others
    splits = open_splits(read["data"], train)
    trainer = Trainer.from_settings(train, model, splits, replay.made, options, strategy=strategy, weights=weights, initial_weights=initial)
    return trainer, read["data"]


# --- The examples of a step, each by itself.


def each_example(trainer: "Trainer", planned: "PlannedStep", data: Manifest) -> list[Example]:
    """The hardest first. The modules, and what they draw at random in the step, are as before."""
    if trainer.planned.stream:
        print("The examples of a stream cannot be read one by one, so they are not shown.")
        return []
    if trainer.state.task.whole_batches:
        print("The loss compares the examples of a batch with one another: none has one by itself, so they are not shown.")
        return []
    modes = [(part, part.training) for module in trainer.state.modules.values() for part in module.modules()]
    for module in trainer.state.modules.values():
        module.eval()
    describe = descriptions(trainer, data)
    found = [Example(number, *by_itself(trainer, number, planned.epoch), *describe(number)) for number in planned.ids.tolist()]
    for part, training in modes:
        part.training = training
    return sorted(found, key=lambda each: (math.isfinite(each.loss), -each.loss))


def by_itself(trainer: "Trainer", number: int, epoch: int) -> tuple[float, float, int]:
    """The loss and the gradient norm of an example, and what it counts."""
    from torch import Tensor

    from snaketrain.data.loading.batches import MicroBatch
    from snaketrain.strategies.base import norm_of
    from snaketrain.strategies.losses import add_up

    state, strategy, losses, norms = trainer.state, trainer.state.strategy, dict[str, Tensor](), list[Tensor]()
    batch = trainer.data.train.batch([number], epoch)
    counts = max(1, state.task.count(batch))
    for objective in state.objectives():
        add_up(losses, strategy.forward_backward(objective, [(MicroBatch((number,)), batch)], counts))
        norms += [strategy.clip(state.modules[name], state.optimizers[name], math.inf) for name in objective.learning]
        state.clear_gradients()
    scale = strategy.scaler.get_scale() if strategy.scaler.is_enabled() else 1.0
    return mean_loss(losses, counts), norm_of(norms).item() / scale, counts


def mean_loss(losses: "LossSums", count: float) -> float:
    """Of all parts, without figures that are only logged."""
    from snaketrain.training.metric_window import is_loss

    return sum(float(part) / max(1.0, count) for name, part in losses.items() if is_loss(name))


def descriptions(trainer: "Trainer", data: Manifest) -> Callable[[int], tuple[str, str]]:
    """Of an example by its number: where it comes from, and its text, as far as the prepared data says that."""
    from snaketrain.data.loading.training_data import Items

    if trainer.train.block_length:
        return lambda number: (f"block {number}", "")
    if isinstance(items := trainer.data.train, Items):
        chosen, texts = items.chosen, getattr(items.dataset, "texts", None)
        return lambda number: (f"item {chosen[number]}", "" if texts is None else str(texts[chosen[number]]))
    examples: Any = getattr(items, "examples", items)  # of packed ones, the texts
    sets = getattr(examples.lengths, "sets", {"train": examples})  # of a mixture, in the order of their numbers
    ends, files = [*accumulate(map(len, sets.values()))], [file_of(data, name) for name in sets]
    lines = examples.table["line"]
    texts = [examples.table[name] for name in ("text", "text_pair") if name in examples.table.column_names]

    def describe(number: int) -> tuple[str, str]:
        place = f"{files[bisect_right(ends, number)]}line {lines[number]}"
        return place, " | ".join(str(column[number]) for column in texts)

    return describe


def file_of(data: Manifest, name: str) -> str:
    """Of a training set: its file, if it has only one; of others than the main one, at least its name."""
    settings = data.settings["data"]
    path = (settings["train"] if name == "train" else settings["train_sets"][name])["path"]
    return f"{path}, " if isinstance(path, str) and Path(path).is_file() else f"{name}, " * (name != "train")


def show(examples: list[Example], most: int) -> None:
    mean = sum(each.loss * each.counts for each in examples) / sum(each.counts for each in examples)
    print(f"{len(examples)} examples, each by itself and without dropout; the mean of their losses is {mean:.6g}")
    rows = [("LOSS", "GRADIENT NORM", "EXAMPLE", "TEXT")]
    for each in examples[:most]:
        text = one_line(each.text)  # with control characters escaped
        text = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
        rows.append((f"{each.loss:.6g}", f"{each.gradient_norm:.6g}", one_line(each.place), text))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
