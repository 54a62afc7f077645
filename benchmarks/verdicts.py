"""How often the comparison calls one of two equal configurations better than the other: at most 5 % is the promise.

Examples are easy or hard for all models; seeds make a model better or worse as a whole, and on each example. The verdict reads the same
predictions as on the page. `power`: how often it finds a difference that is there. `looking`: who adds seeds one by one until it says "better".
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
from harness import command_line, judge, write_figures

from snaketrain.evaluation.paired import ERROR_RATE, Rows, level_of, over_seeds
from snaketrain.evaluation.predictions import Predictions
from snaketrain.evaluation.verdicts import Looks, verdict

GOAL = 0.05
LOOKED_AT = range(2, 9)  # seeds
LEVELS: dict[str, Callable[[int], float]] = {"each look at 5 %": lambda look: ERROR_RATE, "a level for each look": level_of}


@dataclass(frozen=True)
class Population:
    examples: int = 500  # of the test set; the development set has half as many
    configurations: int = 2
    of_examples: float = 1.5  # standard deviations, as logits
    of_seeds: float = 0.1
    of_both: float = 1.0
    advantage: float = 0.0  # of the first configuration
    metric: str = "accuracy"


def draw(population: Population, seeds: int, generator: np.random.Generator) -> tuple[list[dict], dict[tuple[str, str], Predictions]]:
    """Groups of runs as the comparison makes them, and their predictions."""
    saved, groups = {}, []
    for split, correct in draw_correct(population, seeds, generator).items():
        labels = generator.integers(0, 2, correct.shape[-1])
        for number, seed in np.ndindex(correct.shape[:2]):
            saved[f"c{number}-{seed}", split] = of_answers(labels, np.where(correct[number, seed], labels, 1 - labels))
    for number in range(population.configurations):
        names = [f"c{number}-{seed}" for seed in range(seeds)]
        keys = [(split, name) for split in ("dev", "test") for name in ("accuracy", "macro_f1")]
        members = [
            {"run": name, "train.seed": seed} | {f"{split}_{key}": saved[name, split].metrics[key] for split, key in keys}
            for seed, name in enumerate(names)
        ]
        means = {key: float(np.mean([member[key] for member in members])) for key in members[0] if key.startswith(("dev_", "test_"))}
        facts = {"selected_by": population.metric, "mode": "max", "selected_value": means[f"dev_{population.metric}"]}
        group = {"run": f"c{number}", "runs": names, "configuration": f"c{number}", "members": members, "data": "d"}
        groups.append(group | means | facts)
    return groups, saved


def draw_correct(population: Population, seeds: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """By split, whether each configuration is right with each seed on each example."""
    effects = generator.normal(0, population.of_seeds, (population.configurations, seeds, 1))
    effects[0] += population.advantage
    found = {}
    for split, examples in (("dev", population.examples // 2), ("test", population.examples)):
        ease = generator.normal(1.2, population.of_examples, examples)
        found[split] = ease + effects + generator.normal(0, population.of_both, (*effects.shape[:2], examples)) > 0
    return found


def of_answers(labels: np.ndarray, predicted: np.ndarray) -> Predictions:
    f1 = [2 * ((labels == c) & (predicted == c)).sum() / max(1, (labels == c).sum() + (predicted == c).sum()) for c in (0, 1)]
    metrics = {"accuracy": float((labels == predicted).mean()), "macro_f1": float(np.mean(f1))}
    return Predictions("class", ["0", "1"], metrics, pd.DataFrame({"label": labels, "predicted": predicted}).astype(str))


def rate(seeds: int, population: Population, repeats: int, found: Callable[[str], bool] = lambda words: "is better than" in words) -> float:
    """The share of draws in which the verdict says so."""
    generator = np.random.default_rng(seeds)
    hits = 0
    for _ in range(repeats):
        groups, saved = draw(population, seeds, generator)
        hits += found(verdict(groups, lambda run, split, saved=saved: saved[run, split]))
    return hits / repeats


def rates_of_looking(looked_at: Sequence[int], population: Population, repeats: int) -> dict[str, float]:
    """The share of draws in which one is called better at any look, where each look has more of the same seeds than the last.

    As the verdict does: the two best on the development set are tested, and the looks at them and at all configurations are counted.
    """
    generator = np.random.default_rng(0)
    hits = dict.fromkeys(LEVELS, 0)
    for _ in range(repeats):
        correct = draw_correct(population, max(looked_at), generator)
        better, looks = dict.fromkeys(LEVELS, False), Looks()
        for seeds in looked_at:
            dev, test = (correct[split][:, :seeds] for split in ("dev", "test"))
            best, second = np.argsort(-dev.mean((1, 2)), kind="stable")[:2]
            look = max(looks.number(compared, seeds) for compared in (f"{min(best, second)} {max(best, second)}", "all"))
            rows = Rows(np.concatenate([test[best], test[second]]).T.astype(float), population.examples, right_or_wrong=True)
            for name, level in LEVELS.items():
                tested = over_seeds(*test[[best, second]].mean(2), rows, level(look))
                better[name] |= tested.significant and tested.low > 0
        hits = {name: number + better[name] for name, number in hits.items()}
    return {name: number / repeats for name, number in hits.items()}


def cases() -> dict[str, tuple[Population, tuple[int, ...]]]:
    """Populations by name, with the numbers of seeds to draw."""
    plain, several = Population(), (2, 3, 5)
    return {
        "equal": (plain, several),
        "equal, seeds matter much": (replace(plain, of_seeds=0.4), several),
        "equal, seeds do not matter": (replace(plain, of_seeds=0.0), several),
        "equal, five configurations": (replace(plain, configurations=5), several),
        "equal, 100 examples": (replace(plain, examples=100), several),
        "equal, by macro F1": (replace(plain, metric="macro_f1"), (3,)),
        "power: 0.5 logits better": (replace(plain, advantage=0.5), several),
    }


def main() -> None:
    parser = command_line("verdicts", __doc__)
    parser.add_argument(
        "--repeats", type=int, default=1000, help="draws of each case (default: %(default)s); their standard error is 0.7 points at 1,000"
    )
    args = parser.parse_args()
    rates: dict[str, dict[str, float]] = {}
    for name, (population, numbers) in cases().items():
        repeats = args.repeats // 4 if population.metric == "macro_f1" else args.repeats  # the bootstrap takes long
        rates[name] = {str(seeds): rate(seeds, population, repeats) for seeds in numbers}
    models = rate(1, replace(Population(), of_seeds=0.0), args.repeats, lambda words: "more than chance" in words)
    rates["one seed each, equal models"] = {"1": models}
    looking = {name: rates_of_looking(LOOKED_AT, cases()[name][0], args.repeats) for name in ("equal", "equal, seeds matter much")}
    content = {"repeats": args.repeats, "population": asdict(Population()), "rates": rates, "looking": looking}
    write_figures(args.output, content)
    worst = max(share for name, found in rates.items() if name.startswith("equal") for share in found.values())
    worst = max(worst, *(shares["a level for each look"] for shares in looking.values()))
    judge({f"of equal configurations at most {worst:.1%} are called better; the promise is {GOAL:.0%}": worst <= GOAL})


if __name__ == "__main__":
    main()
