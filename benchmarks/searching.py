"""Successive halving of 16 runs against the whole sweep: the steps that it takes, and how good its winner is.

Both are real workflows of a tiny BERT that learns which words are kind. The winner of the whole sweep is trained with further seeds as
well: their spread is how much the winner of the search may be worse. Goals: at most 40 % of the steps, a winner within the spread.
"""

import tempfile
from pathlib import Path
from typing import Any

from harness import command_line, judge, write_figures
from pipeline.workspace import configuration, make_workspace, snakemake, write_sentences

from snaketrain.runtime.journal import last_attempt, read_events
from snaketrain.runtime.manifests import read_manifest

MOST_STEPS, SEEDS, STEPS = 0.4, 5, 150
SWEEP = {"train.learning_rate": [3e-5, 1e-4, 3e-4, 1e-3, 2e-3, 4e-3, 8e-3, 3e-2], "train.batch_size": [8, 32]}


def workspace(folder: Path, **sections: Any) -> Path:
    train = configuration()["train"] | {"steps": STEPS, "evaluate_every": 15}
    del train["epochs"], train["evaluations_per_epoch"]
    make_workspace(folder, train=train, runs={}, select={"metric": "loss"}, **sections)
    write_sentences(folder / "sentences.csv", 1200)
    return folder


def steps_taken(folder: Path) -> dict[str, int]:
    """By run; a step that was repeated counts twice."""
    found: dict[str, int] = {}
    for journal in sorted(folder.glob("results/runs/*/training/journal.jsonl")):
        events = read_events(journal)[0]
        begins = [event["resume_step"] for event in events if event["event"] == "attempt"]
        ends = [event["step"] for event in events if event["event"] == "end"]
        assert last_attempt(journal) and len(begins) == len(ends)
        found[journal.parents[1].name] = sum(end - begin for begin, end in zip(begins, ends, strict=True))
    return found


def dev_losses(folder: Path) -> dict[str, float]:
    """Of the best checkpoint of each finished run."""
    found = {}
    for path in folder.glob("results/runs/*/training/manifest.json"):
        kept = read_manifest(path).facts["checkpoints"].values()
        found[path.parents[1].name] = min(metrics["loss"] for metrics in kept if metrics)
    return dict(sorted(found.items(), key=lambda each: each[1]))


def measure(folder: Path) -> dict[str, Any]:
    grid = workspace(folder / "grid", sweeps={"rate": SWEEP})
    snakemake(grid, "--until", "train_model")
    searched = workspace(folder / "search", sweeps={"rate": SWEEP}, search={"rate": {}})
    snakemake(searched)
    best, *_ = losses = dev_losses(grid)
    rate, batch = (part.partition("=")[2] for part in best.removeprefix("rate-").rsplit("-", 1))
    again = {"train.learning_rate": [float(rate)], "train.batch_size": [int(batch)], "train.seed": list(range(SEEDS))}
    seeds = workspace(folder / "seeds", sweeps={"again": again})
    snakemake(seeds, "--until", "train_model")
    winner, value = next(iter(dev_losses(searched).items()))
    taken = [sum(steps_taken(each).values()) for each in (grid, searched)]
    return {
        "steps": {"sweep": taken[0], "search": taken[1]},
        "sweep": losses,
        "winner": {"run": winner, "dev loss": value, "place in the sweep": 1 + list(losses).index(winner)},
        "best": {"run": best, "dev loss": losses[best], "dev loss by seed": sorted(dev_losses(seeds).values())},
        "continued": [sorted(run for run, steps in steps_taken(searched).items() if steps > share * STEPS) for share in (0.1, 0.3)],
    }


def main() -> None:
    args = command_line("searching", __doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    write_figures(args.output, found)
    share, by_seed = found["steps"]["search"] / found["steps"]["sweep"], found["best"]["dev loss by seed"]
    judge({
        f"{share:.1%} of the steps, at most {MOST_STEPS:.0%}": share <= MOST_STEPS,
        "the winner is within the spread of the best": found["winner"]["dev loss"] <= max(by_seed[-1], found["best"]["dev loss"]),
    })  # fmt: skip


if __name__ == "__main__":
    main()
