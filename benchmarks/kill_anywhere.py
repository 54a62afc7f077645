"""Kills a training at random moments, resumes it, and compares with one that ran without interruption.

    python benchmarks/kill_anywhere.py --trials 100
    python benchmarks/kill_anywhere.py --strategy fsdp --format sharded --trials 30   # each checkpoint in the shards of two processes

Only trainings that were killed between their first checkpoint and their end, and that resumed from a checkpoint according to
their journal, count as trials. A trial passes if it resumed from its newest checkpoint each time, and if the final weights and all
losses and metrics of the journal are bitwise the same, with no step missing. Trainings that were killed too early or too late are
counted separately and replaced. Small models on the CPU, with dropout; one process or two, of which one or both are killed.
"""

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness import command_line, training, write_figures

# isort: split
from distributed import forking
from pipeline.workspace import prepared

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TRAIN = {"batch_size": 16, "epochs": 4, "learning_rate": 1e-3, "evaluations_per_epoch": 3}
RESUMED, RESTARTED, NOT_IN_TIME = "resumed mid-way", "restarted from zero", "not killed in time"

Result = tuple[dict, dict]


@dataclass
class Found:
    """What came of some trainings: how each resumed after it was killed, and what went wrong."""

    kinds: Counter[str] = field(default_factory=Counter)
    passed: int = 0
    resumed_from: list[int] = field(default_factory=list)  # the steps
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Found") -> None:
        self.kinds += other.kinds
        self.passed += other.passed
        self.resumed_from += other.resumed_from
        self.problems += other.problems


@dataclass
class Alone:
    """The training that was left alone."""

    result: Result
    steps: int
    seconds: float  # from its start to its end
    gaps: dict[int, float]  # seconds from a line of its journal to the next, from its first checkpoint to its last steps


def arguments(
    data: Path, folder: Path, seed: int, model: Mapping[str, Any] = MappingProxyType({}), format: str = "auto", **train: Any
) -> list[str]:
    """Of train_model.py."""
    from snaketrain.config.schema import Model, Train

    of_model = Model(use="transformers.BertForSequenceClassification", arguments={**SMALL, **model})
    options = ["--checkpoint-format", format, "--log-every", "3"]
    return training(folder, data, Train(**(TRAIN | {"seed": seed} | train)), of_model, *options, run="test")[1:]


def result(folder: Path) -> Result:
    """The final weights, and everything that the journal says about steps: what came first counts."""
    from snaketrain.runtime.journal import read_events

    metrics_by_event: dict[tuple[str, int], dict] = {}
    for event in read_events(folder / "journal.jsonl")[0]:
        if event["event"] in ("train", "eval"):
            metrics = {name: value for name, value in event["metrics"].items() if not name.endswith("per_second")}
            metrics_by_event.setdefault((event["event"], event["step"]), metrics)
    return weights(max((folder / "checkpoints").glob("step-*"))), metrics_by_event


def weights(checkpoint: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    from snaketrain.training.checkpoints.rank_state import empty, fill, stored
    from snaketrain.training.checkpoints.ranking import is_sharded

    if is_sharded(checkpoint):
        return fill(checkpoint / "weights", "model", empty(stored(checkpoint / "weights", "model")))
    return load_file(checkpoint / "model.safetensors")


def same(one: Result, other: Result) -> bool:
    weights = all((one[0][name] == other[0][name]).all() for name in one[0])
    return weights and one[0].keys() == other[0].keys() and one[1] == other[1]


def leave_alone(data: Path, folder: Path, processes: int, **settings: Any) -> Alone:
    log, started = folder.with_suffix(".log"), time.time()
    if any(codes := forking.run(arguments(data, folder, **settings), processes, log)):
        raise SystemExit(f"the training that was left alone ended with {codes}:\n{log.read_text()[-3000:]}")
    seconds, lines_written = time.time() - started, events(folder)
    names = [event["event"] for event in lines_written]
    lines = range(names.index("checkpoint"), len(names) - names[::-1].index("train") - 1)
    gaps = {line: lines_written[line + 1]["time"] - lines_written[line]["time"] for line in lines}
    return Alone(result(folder), lines_written[-1]["step"], seconds, gaps)


def events(folder: Path, kind: str | None = None) -> list[dict]:
    from snaketrain.runtime.journal import read_events

    return [event for event in read_events(folder / "journal.jsonl")[0] if kind in (None, event["event"])]


def kind_of(resumed_from: list[int], steps: int) -> str:
    """How a training resumed that was killed and started again, perhaps several times."""
    if any(0 < step < steps for step in resumed_from):
        return RESUMED
    return RESTARTED if 0 in resumed_from else NOT_IN_TIME


def trial(data: Path, folder: Path, number: int, processes: int, alone: Alone, script: Path, **settings: Any) -> Found:
    """One training: first killed at any moment after its first checkpoint, then perhaps at any other, and at last left alone."""
    draw, log, words = random.Random(number), folder.with_suffix(".log"), arguments(data, folder, **settings)
    kills, moments, resumed_from, problems = draw.randint(1, 3), [], [], []
    for start in range(kills + 1):
        saved, before = newest_complete(folder), len(events(folder, "attempt"))
        pids = forking.start(words, processes, log, script)
        if start == 0:  # by what the journal says, since the time that it takes differs on a busy machine
            line = draw.choice(list(alone.gaps))
            seconds = draw.uniform(0, alone.gaps[line])
            moments.append(f"{seconds:.3f} s after line {line + 1} of its journal")
            wait_for(pids, lambda line=line: len(events(folder)) > line and events(folder, "checkpoint"))
        elif start < kills:
            seconds = draw.uniform(0, alone.seconds)
            moments.append(f"{seconds:.3f} s after its start")
        if start < kills:
            forking.kill(pids, seconds, forking.some(processes, draw), lambda before=before: len(events(folder, "attempt")) > before)
        codes = forking.wait(pids, forking.SHUTTING_DOWN_SECONDS if start < kills else 300)
        for attempt in events(folder, "attempt")[max(1, before) :]:
            resumed_from.append(attempt["resume_step"])
            if attempt["resume_step"] != saved:
                problems.append(f"resumed from step {attempt['resume_step']}, though step {saved} was saved")
        if codes == [0] * processes:
            break
    if codes != [0] * processes:
        problems.append(f"ended with {codes}")
    elif not same(result(folder), alone.result):
        problems.append("came to another result")
    kind, trial = kind_of(resumed_from, alone.steps), f"{processes} processes, trial {number}, killed {', '.join(moments)}"
    return Found(
        Counter([kind]), int(kind == RESUMED and not problems), resumed_from, [f"{trial}: {problem}; see {log}" for problem in problems]
    )


def newest_complete(folder: Path) -> int:
    """The step of the newest checkpoint, which is complete before it is renamed into place: the next start does that."""
    from snaketrain.runtime.run_folder import last_saved
    from snaketrain.training.checkpoints.publishing import damage

    not_renamed = [int(path.name.removeprefix(".step-")) for path in folder.glob("checkpoints/.step-*") if not damage(path)]
    return max([last_saved(folder), *not_renamed])


def wait_for(pids: list[int], condition: Callable[[], Any]) -> None:
    """Until then, or until one of the processes has ended."""
    while not (condition() or forking.ended(pids)):
        time.sleep(0.002)


def trials(
    folder: Path, data: Path, count: int, processes: int, seed: int = 0, first: int = 0, script: Path = forking.SCRIPT, **settings: Any
) -> Found:
    """So many that passed; `settings` are those of the training.

    If of twice as many that were killed in time fewer passed, that is a problem, too. On a busy machine many are not killed in time.
    """
    alone = leave_alone(data, folder / "alone", processes, seed=seed, **settings)
    found = Found()
    for number in range(first, first + 6 * count):
        one = trial(data, folder / f"trial-{number}", number, processes, alone, script, seed=seed, **settings)
        found.add(one)
        print(*(one.problems or [f"{processes} processes, trial {number}: {', '.join(one.kinds)}, the same"]), sep="\n", flush=True)
        if found.passed == count:
            return found
        if found.kinds[RESUMED] + found.kinds[RESTARTED] == 2 * count:
            break
    found.problems.append(
        f"{processes} processes: {found.passed} of {found.kinds.total()} trainings passed, {count} were to: {counted(found)}. If too few "
        "resumed although nothing is wrong, the machine is too busy for moments that are drawn from an undisturbed training: try again."
    )
    return found


def counted(found: Found) -> str:
    return ", ".join(f"{found.kinds[kind]} {kind}" for kind in (RESUMED, RESTARTED, NOT_IN_TIME))


def main() -> None:
    parser = command_line("kill_anywhere", __doc__)
    parser.add_argument(
        "--trials", type=int, default=100, help="half of them with one process, half with two; with --strategy, all with two (%(default)s)"
    )
    parser.add_argument("--strategy", help="train under this one, such as fsdp (default: single and ddp)")
    parser.add_argument(
        "--format", choices=("auto", "whole", "sharded"), default="auto", help="format of the checkpoints (default: %(default)s)"
    )
    parser.add_argument("--script", type=Path, default=forking.SCRIPT, help="what is killed, such as one with a fault (%(default)s)")
    args = parser.parse_args()
    if args.strategy and args.output == parser.get_default("output"):
        args.output = args.output.with_stem(f"kill_anywhere_{args.strategy}")
    forking.preload()
    found, folder = Found(), Path(tempfile.mkdtemp(prefix="kill-anywhere-"))
    data = prepared(folder / "workspace")
    settings = {"format": args.format} | ({"strategy": args.strategy} if args.strategy else {})
    for processes, count in ((2, args.trials),) if args.strategy else ((1, args.trials - args.trials // 2), (2, args.trials // 2)):
        place = folder / f"processes-{processes}"
        place.mkdir()
        found.add(trials(place, data, count, processes, seed=processes, script=args.script, **settings))
    print(f"{found.passed} of {args.trials} trials resumed mid-way and came to the same weights and the same journal")
    print(f"All trainings: {counted(found)}", *found.problems, sep="\n")
    figures = {"trials": args.trials, **settings, "passed": found.passed} | {
        kind: found.kinds[kind] for kind in (RESUMED, RESTARTED, NOT_IN_TIME)
    }
    figures |= {"resumed from steps": dict(sorted(Counter(found.resumed_from).items())), "problems": found.problems}
    write_figures(args.output, figures)
    if found.problems:  # whose logs are in the folder
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
