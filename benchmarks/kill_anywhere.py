"""Kills a training at random moments, starts it again, and compares with one that was left alone.

A trial passes if the final weights are the same to the bit, and so are all losses and metrics of the journal, with no step
missing. Small models on the CPU, dropout on; one process or two, of which one or both are killed.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "workflow/scripts")]

from distributed import forking  # noqa: E402
from pipeline.workspace import prepared  # noqa: E402

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TRAIN = {"batch_size": 16, "epochs": 4, "learning_rate": 1e-3, "evaluations_per_epoch": 3}


def arguments(data: Path, folder: Path, seed: int, **train: Any) -> list[str]:
    from snaketrain.configuration import strings
    from snaketrain.settings import Model, Train

    settings = strings("train", Train(**(TRAIN | {"seed": seed} | train)))
    settings += strings("model", Model(use="transformers.BertForSequenceClassification", arguments=SMALL))
    paths = ["--run-name", "test", "--data", str(data), "--output", str(folder / "manifest.json")]
    return [*paths, "--log-every", "3", "--device", "cpu", "--settings", *settings]


def result(folder: Path) -> tuple[dict, dict]:
    """The final weights, and everything that the journal says about steps: what came first counts."""
    from safetensors.numpy import load_file

    from snaketrain.journal import read_events

    told: dict[tuple[str, int], dict] = {}
    for event in read_events(folder / "journal.jsonl")[0]:
        if event["event"] in ("train", "eval"):
            metrics = {name: value for name, value in event["metrics"].items() if not name.endswith("per_second")}
            told.setdefault((event["event"], event["step"]), metrics)
    return load_file(max((folder / "checkpoints").glob("step-*")) / "model.safetensors"), told


def same(one: tuple[dict, dict], other: tuple[dict, dict]) -> bool:
    weights = all((one[0][name] == other[0][name]).all() for name in one[0])
    return weights and one[0].keys() == other[0].keys() and one[1] == other[1]


def trial(data: Path, folder: Path, number: int, processes: int, expected: tuple[dict, dict], seconds: float, seed: int) -> str | None:
    """What went wrong, if anything did."""
    draw, log = random.Random(number), folder.with_suffix(".log")
    words = arguments(data, folder, seed)
    moments = []
    for _ in range(draw.randint(1, 3)):
        moments.append(round(draw.uniform(0, 1.1 * seconds), 3))
        codes = forking.kill_at(words, processes, log, moments[-1], forking.some(processes, draw))
        if codes == [0] * processes:
            break
    if codes != [0] * processes and (codes := forking.run(words, processes, log)) != [0] * processes:
        return f"killed after {moments} seconds, then ended with {codes}; see {log}"
    return None if same(result(folder), expected) else f"killed after {moments} seconds, and came to another result in {folder}"


def trials(folder: Path, data: Path, count: int, processes: int, seed: int = 0, first: int = 0) -> list[str]:
    """The failures."""
    whole = folder / "whole"
    started = time.perf_counter()
    codes = forking.run(arguments(data, whole, seed), processes, folder / "whole.log")
    seconds = time.perf_counter() - started
    if any(codes):
        raise SystemExit(f"the training that was left alone ended with {codes}:\n{(folder / 'whole.log').read_text()[-3000:]}")
    expected = result(whole)
    problems = []
    for number in range(first, first + count):
        problem = trial(data, folder / f"trial-{number}", number, processes, expected, seconds, seed)
        problems += [problem] if problem else []
        print(f"{processes} processes, trial {number}: {problem or 'the same'}", flush=True)
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="half of them with one process, half with two (%(default)s)")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "benchmarks/results/kill_anywhere.json", help="%(default)s")
    args = parser.parse_args()
    forking.preload()
    with tempfile.TemporaryDirectory(prefix="kill-anywhere-") as name:
        folder = Path(name)
        data = prepared(folder / "workspace")
        problems = []
        for processes in (1, 2):
            place = folder / f"processes-{processes}"
            place.mkdir()
            problems += trials(place, data, args.trials // 2, processes, seed=processes)
    passed = args.trials // 2 * 2 - len(problems)
    print(f"{passed} of {args.trials // 2 * 2} trials came to the same weights and the same journal")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps({"trials": args.trials // 2 * 2, "passed": passed, "problems": problems}, indent=2) + "\n")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
