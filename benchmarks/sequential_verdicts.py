"""What sequential verdicts say of configurations that are equal, or differ, and how many seeds they take.

Draws are those of verdicts.py. Goals: of two equal configurations one is called better in at most 5 % of draws; where one is better by half a logit,
that is found with at most half of the seeds that a fixed number would take.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from harness import command_line, judge, write_figures
from verdicts import GOAL, Population, cases, draw_correct

from snaketrain.evaluation.paired import Rows, level_of, over_seeds
from snaketrain.evaluation.verdicts import Judged
from snaketrain.extras.sequential_verdicts.decide_seeds import FUTILE, chance_at_the_end
from snaketrain.extras.sequential_verdicts.top_level import SequentialVerdict

LOOKS = SequentialVerdict(runs=["a", "b"]).looks  # the default
HALF_A_LOGIT = "0.5 logits better"


def main() -> None:
    parser = command_line("sequential_verdicts", __doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="draws of each kind (default: %(default)s)")
    args = parser.parse_args()
    equal = {
        name: each
        for name, (each, _) in cases().items()
        if name.startswith("equal") and each.metric == "accuracy" and each.configurations == 2
    }
    different = {f"{logits} logits better": replace(Population(), advantage=logits) for logits in (0.25, 0.5)}
    found = {name: outcomes(population, args.repeats) for name, population in (equal | different).items()}
    write_figures(args.output, {"repeats": args.repeats, "looks": LOOKS, "outcomes": found})
    wrong, seeds = max(1 - found[name].get("undecided", 0) for name in equal), found[HALF_A_LOGIT]["seeds"]
    judge(
        {
            f"of equal configurations at most {wrong:.1%} are called better; the promise is {GOAL:.0%}": wrong <= GOAL,
            f"half a logit is found with {seeds:.1f} seeds; the goal is {LOOKS[-1] / 2:g}": seeds <= LOOKS[-1] / 2,
        }
    )


def outcomes(population: Population, repeats: int) -> dict[str, float]:
    """The share of draws in which the first is called better, the second, or neither, and the mean number of seeds."""
    generator, said, taken = np.random.default_rng(0), Counter[str](), 0
    for _ in range(repeats):
        correct, outcome = draw_correct(population, LOOKS[-1], generator), "undecided"
        for look, seeds in enumerate(LOOKS, 1):
            dev, test = (correct[split][:, :seeds] for split in ("dev", "test"))
            best, second = np.argsort(-dev.mean((1, 2)), kind="stable")
            rows = Rows(np.concatenate([test[best], test[second]]).T.astype(float), population.examples, right_or_wrong=True)
            tested = over_seeds(*test[[best, second]].mean(2), rows, level_of(look))
            judged = Judged("", float(test[best].mean() - test[second].mean()), tested)
            if judged.is_better:
                outcome = ("the first is better", "the second is better")[best]
            if judged.is_better or chance_at_the_end(judged, LOOKS, look) < FUTILE:
                break
        said[outcome] += 1
        taken += seeds
    return {name: number / repeats for name, number in said.items()} | {"seeds": taken / repeats}


if __name__ == "__main__":
    main()
