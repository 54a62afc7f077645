"""Decide whether two configurations are told apart by the seeds so far, or need more, or would hardly be told apart by more."""

import math
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.evaluation import comparing, verdicts
from snaketrain.evaluation.paired import level_of
from snaketrain.evaluation.predictions import Predictions, read_predictions
from snaketrain.extras.sequential_verdicts.top_level import SequentialVerdict
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import Manifest, read_manifest, verify, write_json
from snaketrain.runtime.strict_json import JsonObject

FUTILE = 0.1  # chance to be told apart at the last look, below which no further seeds are trained
NORMAL = NormalDist()


def arguments() -> Namespace:
    parser = stages.parser("decide_seeds", __doc__)
    parser.add_argument("--decision", required=True, metavar="VERDICT/LOOK", help="name of the look")
    parser.add_argument(
        "--manifests", required=True, nargs="+", metavar="MANIFEST", help="manifests of the look before, and of the evaluations of this one"
    )
    return parser.parse_args()


def main(args: Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    asked = SequentialVerdict.model_validate(job.given.settings["verdict"])
    look = int(args.decision.rpartition("/")[2])
    found = [read_manifest(path) for path in args.manifests]
    verify(*found)
    before = {f"decide_seeds {each.facts['decision']}": each for each in found if each.stage == "decide_seeds"}
    evaluated = {each.folder.parent.name: each for each in found if each.stage == "evaluate_model"}
    facts = looked(asked, look, evaluated) if evaluated else next(iter(before.values())).facts
    facts |= {"decision": args.decision}
    write_json(job.folder / "decision.json", facts)
    inputs = {name: manifest.content for name, manifest in (before | evaluated).items()}
    job.finish(inputs, ["decision.json"], facts, started)
    print(f"{args.decision}: {facts['seeds']} of at most {asked.looks[-1]} seeds each. {facts['verdict']} {facts['why']}")


def looked(asked: SequentialVerdict, look: int, evaluated: dict[str, Manifest]) -> JsonObject:
    """What the page would say, and whether more seeds are to be trained."""
    runs = {name: comparing.read_run(evaluated[name].folder.parent) for name in asked.at(look)}

    def predicted(run: str, split: str) -> Predictions | None:
        return read_predictions(evaluated[run].folder, split, runs[run]["test" if split == "test" else "dev"])

    seen = [asked.at(each) for each in range(1, look)]
    judged = verdicts.of_two([*runs.values()], predicted, verdicts.Looks(), seen)
    chance = 0.0 if judged.is_better else chance_at_the_end(judged, asked.looks, look)
    if judged.is_better:
        why = "Decided: no further seeds."
    elif look == len(asked.looks):
        why = "Undecided, and these are all seeds."
    elif chance < FUTILE:
        why = f"Undecided: with {asked.looks[-1]} seeds the chance to tell would be {chance:.0%}, so no further seeds."
    else:
        why = f"With {asked.looks[look]} seeds it is looked at again; the chance to tell with {asked.looks[-1]} is {chance:.0%}."
    return {
        "seeds": asked.looks[look - 1],
        "continues": chance >= FUTILE,
        "verdict": judged.words,
        "why": why,
        "looks": [*seen, asked.at(look)],
    }


def chance_at_the_end(judged: verdicts.Judged, looks: Sequence[int], look: int) -> float:
    """That the last look will be significant, by the gap so far and its standard error: predictive power."""
    if look == len(looks) or judged.tested is None or not judged.tested.error:
        return 0.0  # no look is left, they predict the same, or seeds make no difference
    now = judged.tested.error
    at_end = now * math.sqrt(looks[look - 1] / looks[-1])
    needed, remaining = NORMAL.inv_cdf(1 - level_of(len(looks)) / 2) * at_end, math.sqrt(now**2 - at_end**2)
    return sum(NORMAL.cdf((gap - needed) / remaining) for gap in (judged.gap, -judged.gap))


if __name__ == "__main__":
    args = arguments()
    stages.run(partial(main, args), args.output.parent)
