"""The verdict, its tests and intervals, against scipy, scikit-learn and counts by hand; and how often it is wrong."""

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics as reference

from snaketrain.evaluation.paired import Contender, bootstrap, difference, level_of, mcnemar_test, over_seeds
from snaketrain.evaluation.predictions import METRICS, Predictions, metric_of, read_predictions
from snaketrain.evaluation.verdicts import Looks, verdict, warnings
from snaketrain.runtime.strict_json import rounded

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import verdicts as simulation


def of_answers(correct: np.ndarray) -> Predictions:
    """Predictions of a two-class classifier that is right on some examples."""
    labels = np.arange(len(correct)) % 2
    predicted = np.where(correct, labels, 1 - labels)
    table = pd.DataFrame({"label": labels, "predicted": predicted}).astype(str)
    return Predictions("class", ["0", "1"], {"accuracy": float(np.mean(correct))}, table)


def group(name: str, answers: list[np.ndarray], **changes) -> dict:
    members = [{"run": f"{name}-{seed}", "train.seed": seed, "test_accuracy": float(np.mean(each))} for seed, each in enumerate(answers)]
    mean = float(np.mean(answers))
    return {"run": name, "configuration": name, "data": "d", "runs": [member["run"] for member in members], "members": members, "selected_by": "accuracy",
            "mode": "max", "selected_value": mean, "dev_accuracy": mean, "test_accuracy": mean} | changes  # fmt: skip


def said(*configurations: tuple[str, list[np.ndarray]], **changes) -> str:
    """The verdict; `changes` are those of the last configuration."""
    *others, last = configurations
    saved = {f"{name}-{seed}": of_answers(each) for name, answers in configurations for seed, each in enumerate(answers)}
    return verdict([*(group(*each) for each in others), group(*last, **changes)], lambda run, split: saved[run])


def answers(right: int, examples: int = 200, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(examples) < right


def test_with_one_seed_each_the_models_are_tested_not_the_settings():
    found = said(("b", [answers(120)]), ("a", [answers(180)]))
    assert found.startswith("a is ahead of b: test accuracy 0.900 against 0.600. The gap is 0.300 (95 % interval ")
    assert "McNemar's test on the same 200 examples, p < 0.001" in found and "sweep train.seed" in found and "is better" not in found
    found = said(("b", [answers(120)]), ("a", [answers(121, seed=1)]))
    assert found.startswith("a is not clearly better than b") and "it may be chance" in found


def test_over_several_seeds_the_verdict_may_be_better():
    found = said(("b", [answers(120 + n, seed=n) for n in range(3)]), ("a", [answers(180 + n, seed=n) for n in range(3)]))
    assert found.startswith("a is better than b: test accuracy 0.905 against 0.605 (3 seeds each). The gap is 0.300")
    found = said(("b", [answers(n, seed=n) for n in (100, 140)]), ("a", [answers(n, seed=n) for n in (120, 150)]))
    assert "a is not clearly better than b" in found and "Welch's t over seeds and the same examples" in found
    found = said(("b", [answers(120)]), ("a", [answers(180 + n, seed=n) for n in range(3)]))
    assert found.startswith("a is better than b: test accuracy 0.905 against 0.600 (means over 3 and 1 seeds)")


def test_the_best_on_the_development_set_may_be_behind():
    found = said(("b", [answers(180)]), ("a", [answers(140)]), selected_value=0.99)
    assert (
        found.startswith("a was ahead on the development set, but is not better than b")
        and "behind by 0.200 there (95 % interval 0.1" in found
    )
    found = said(("b", [answers(140)]), ("a", [answers(140, seed=1)]), selected_value=0.99)
    assert found.endswith("is not better than b: test accuracy 0.700 against 0.700. They are level there.")
    assert "nothing to compare" in said(("a", [answers(140)]))


def test_figures_of_different_examples_are_marked():
    """Such as those of two runs with other data, whose `data.name` is the same."""
    saved = {"b-0": of_answers(answers(120)), "a-0": of_answers(answers(180))}
    groups = [group("b", [answers(120)]), group("a", [answers(180)])]
    found = verdict(groups, lambda run, split: saved[run])
    saved["a-0"].table["text"], saved["b-0"].table["text"] = "a tweet", "a review"
    marked = verdict(groups, lambda run, split: saved[run])
    assert "different examples" not in found and "McNemar" in found
    assert marked == (
        "a and b: test accuracy 0.900 against 0.600. Their test sets have different examples or labels, so there is no order between them."
    )


def test_identical_predictions_are_called_identical():
    assert said(("b", [answers(140)]), ("a", [answers(140)])) == "a and b predict the same: test accuracy 0.700 against 0.700."


def test_runs_with_other_development_examples_are_not_ranked():
    saved = {"b-0": of_answers(answers(120)), "a-0": of_answers(answers(180)), "c-0": of_answers(answers(190))}
    groups = [group(name, [answers(number)]) for name, number in (("b", 120), ("a", 180), ("c", 190))]
    for each, digest in zip(groups, ("11111111", "11111111", "22222222"), strict=True):
        each["dev_examples_digest"] = digest
    found = verdict(groups, lambda run, split: saved[run])
    assert "a is ahead of b" in found and "c is" not in found
    assert "Development sets of other examples are not ranked against each other" in found and "(222222): c" in found


def test_a_seed_without_the_metric_is_not_counted():
    """Such as an AUROC of a test set on which one model's answers are constant."""
    undefined = {"run": "a-1", "train.seed": 1, "test_accuracy": math.nan}
    ours = group("a", [answers(180)])
    found = verdict(
        [group("b", [answers(120)]), ours | {"runs": ["a-0", "a-1"], "members": [*ours["members"], undefined]}], lambda *_: None
    )
    assert found.startswith("a is ahead of b: test accuracy 0.900 against 0.600 (means over 1 of 2 and 1 seeds). One seed each does not")


@pytest.mark.parametrize("examples", [1, 2, 7])
def test_a_few_examples_prove_nothing(examples):
    def of_losses(shift: float) -> Predictions:
        losses = np.linspace(1, 2, examples) + shift
        return Predictions(None, [], {"loss": float(losses.mean())}, pd.DataFrame({"loss": losses}).astype(str))

    assert difference("loss", Contender([1.5], [of_losses(0)]), Contender([1.7], [of_losses(0.2)])) is None
    right = [answers(number, examples) for number in (0, examples, examples, examples)]
    contenders = [Contender([float(each.mean()) for each in pair], list(map(of_answers, pair))) for pair in (right[:2], right[2:])]
    assert difference("accuracy", *contenders).test == "Welch's t over seeds alone"


def test_the_bootstrap_seldom_calls_equal_models_different_on_few_examples(examples=8):
    """The plain percentile interval does so for 12 % of such pairs."""
    generator = np.random.default_rng(0)

    def called_different() -> bool:
        gaps = generator.normal(size=examples)
        resampled = generator.multinomial(examples, [1 / examples] * examples, 1000) @ gaps / examples
        return bootstrap(np.stack([resampled, np.zeros(1000)], axis=1), examples).significant

    assert sum(called_different() for _ in range(1000)) / 1000 <= 0.08


def test_seeds_without_any_variance_prove_nothing():
    assert not over_seeds([0.9, 0.9], [0.8, 0.8], None).significant


def test_without_predictions_one_seed_each_is_inconclusive():
    both = [group("b", [answers(120)]), group("a", [answers(180)])]
    found = verdict(both, lambda run, split: None)
    assert (
        found == "a is ahead of b: test accuracy 0.900 against 0.600. One seed each does not tell whether that is chance: sweep train.seed."
    )


def test_a_lower_loss_is_better():
    def of_losses(losses: list[float]) -> Predictions:
        return Predictions(None, [], {"loss": float(np.mean(losses))}, pd.DataFrame({"loss": losses}).astype(str))

    saved = {"a-0": of_losses([0.1, 0.2, 0.3, 0.2] * 20), "b-0": of_losses([0.5, 0.5, 0.6, 0.7] * 20)}
    groups = [
        group(name, [np.zeros(1)], selected_by="loss", mode="min", selected_value=loss, test_loss=loss)
        | {"members": [{"run": f"{name}-0", "test_loss": loss}]}
        for name, loss in (("b", 0.575), ("a", 0.2))
    ]
    found = verdict(groups, lambda run, split: saved[run])
    assert found.startswith("a is ahead of b: test loss 0.200 against 0.575. The gap is 0.375 (95 % interval 0.3")
    assert "paired bootstrap over the same examples" in found


def test_mcnemar_is_the_binomial_test_of_the_examples_that_differ():
    ours, theirs = np.array([1] * 14 + [0] * 4 + [1] * 30), np.array([0] * 14 + [1] * 4 + [1] * 30)
    found = mcnemar_test(np.stack([ours, theirs], 1).astype(float))
    p = stats.binomtest(4, 18).pvalue
    assert found.test.endswith(f"p = {p:.2g}") and found.significant == (p < 0.05)
    same = mcnemar_test(np.ones((20, 2)))
    assert not same.significant and same.low == pytest.approx(-same.high)


def test_an_accuracy_that_is_a_share_of_each_example_is_not_counted_as_right_or_wrong():
    """McNemar's test would count a text that is a token better as one that is right."""
    shares = [np.random.default_rng(seed).uniform(0.4, 0.6, 50) + 0.01 * seed for seed in range(2)]
    tables = [pd.DataFrame({"accuracy": each}).astype(str) for each in shares]
    saved = [Predictions(None, [], {"accuracy": float(each.mean())}, table) for each, table in zip(shares, tables, strict=True)]
    found = difference("accuracy", *(Contender([each.metrics["accuracy"]], [each]) for each in saved))
    assert found.test == "paired bootstrap over the same examples" and found.low < shares[0].mean() - shares[1].mean() < found.high


@pytest.mark.parametrize(("better", "worse"), [(0.05, 0), (0.5, 0), (0.1, 0.02), (0.3, 0.1), (0.08, 0.05), (0.05, 0.05)])
@pytest.mark.parametrize("examples", [20, 100, 300])
def test_the_interval_of_mcnemar_covers_the_gap(examples, better, worse):
    """Exactly, over all outcomes: an interval given how many examples differ covered 20 to 90 % where one is right on nearly all of these."""
    covered = 0.0
    for ours in np.flatnonzero(stats.binom.pmf(range(examples + 1), examples, better) > 1e-6):
        chance = stats.binom.pmf(ours, examples, better)
        rest = stats.binom.pmf(range(examples - ours + 1), examples - ours, worse / (1 - better))
        for theirs in np.flatnonzero(rest > 1e-5):
            rows = np.repeat([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [ours, theirs, examples - ours - theirs], axis=0)
            found = mcnemar_test(rows)
            covered += chance * rest[theirs] * (found.low <= better - worse <= found.high)
    assert covered > 0.935


@pytest.mark.parametrize("discordant", [1, 5, 6, 20, 100])
def test_the_interval_of_mcnemar_excludes_zero_just_where_the_test_is_significant(discordant):
    """With an interval from a normal approximation they contradicted each other: 5 of 5 examples, p 0.063, from 0.013."""
    for ours in range(discordant + 1):
        gaps = np.array([1] * ours + [-1] * (discordant - ours) + [0] * 100)
        found = mcnemar_test(np.stack([gaps > 0, gaps < 0], 1).astype(float))
        assert found.significant == (found.low > 0 or found.high < 0)
        assert found.low <= gaps.mean() <= found.high


def test_over_seeds_alone_it_is_the_interval_of_welch():
    ours, theirs = [0.82, 0.85, 0.80], [0.78, 0.77]
    found = over_seeds(ours, theirs, None)
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    single = over_seeds(ours, [0.7], None)  # as for a new observation from the same distribution
    half = stats.t.ppf(0.975, 2) * np.std(ours, ddof=1) * math.sqrt(1 / 3 + 1)
    assert single.high - single.low == pytest.approx(2 * half)


def test_the_variance_over_examples_is_added():
    """Seeds that agree say little about other examples: without these the interval would have length 0."""
    ours, theirs = answers(130).astype(float), answers(120, seed=1).astype(float)
    contenders = [Contender([float(each.mean())] * 3, [of_answers(each > 0)] * 3) for each in (ours, theirs)]
    found = difference("accuracy", *contenders)
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(ours - theirs, ddof=1) / math.sqrt(200), rel=0.01)


def test_the_bootstrap_agrees_with_the_variance_of_a_mean():
    values = np.random.default_rng(0).normal(size=(400, 2))
    tables = [pd.DataFrame({"loss": column}) for column in values.T]
    both = [Predictions(None, [], {"loss": float(column.mean())}, table) for column, table in zip(values.T, tables, strict=True)]
    found = difference("loss", *(Contender([each.metrics["loss"]], [each]) for each in both))
    gaps = values[:, 0] - values[:, 1]
    assert found.high - found.low == pytest.approx(2 * 1.96 * gaps.std() / 20, rel=0.1)
    assert (found.low + found.high) / 2 == pytest.approx(gaps.mean(), abs=0.02)
    assert bootstrap(np.array([[1.0, 0.5]] * 20), 20).significant


def test_examples_that_differ_are_not_paired():
    ours, theirs = of_answers(answers(180)), of_answers(answers(120))
    other = Predictions("class", ["0", "1"], theirs.metrics, theirs.table.assign(text="another"))
    assert difference("accuracy", Contender([0.9], [ours]), Contender([0.6], [theirs])) is not None
    assert difference("accuracy", Contender([0.9], [other]), Contender([0.6], [theirs])) is None


LABELS = np.random.default_rng(1).integers(0, 3, 60)
GUESSES = np.where(np.random.default_rng(2).random(60) < 0.7, LABELS, (LABELS + 1) % 3)
SETS = np.random.default_rng(3).random((60, 3)) < 0.5
FOUND = SETS ^ (np.random.default_rng(4).random((60, 3)) < 0.2)
NUMBERS = np.random.default_rng(5).normal(size=(2, 60))
WEIGHTS = np.random.default_rng(6).integers(0, 4, 60)


def by_reference(form: str, name: str, rows: np.ndarray) -> float:
    """Resampled rows, some of them repeated."""
    labels, guesses, (x, y) = LABELS[rows], GUESSES[rows], NUMBERS[:, rows]
    f1 = {"labels": range(3), "zero_division": 0}
    return {
        ("class", "accuracy"): lambda: reference.accuracy_score(labels, guesses),
        ("class", "macro_f1"): lambda: reference.f1_score(labels, guesses, average="macro", **f1),
        ("class", "loss"): lambda: reference.log_loss(labels, probabilities()[rows], labels=range(3)),
        ("class", "balanced_accuracy"): lambda: reference.balanced_accuracy_score(labels, guesses),
        ("class", "matthews_correlation"): lambda: reference.matthews_corrcoef(labels, guesses),
        ("class", "weighted_f1"): lambda: reference.f1_score(labels, guesses, average="weighted", **f1),
        ("class", "cohen_kappa"): lambda: reference.cohen_kappa_score(labels, guesses),
        ("class", "quadratic_weighted_kappa"): lambda: reference.cohen_kappa_score(labels, guesses, weights="quadratic"),
        ("classes", "exact_match"): lambda: reference.accuracy_score(SETS[rows], FOUND[rows]),
        ("classes", "macro_f1"): lambda: reference.f1_score(SETS[rows], FOUND[rows], average="macro", zero_division=0),
        ("classes", "micro_f1"): lambda: reference.f1_score(SETS[rows], FOUND[rows], average="micro", zero_division=0),
        ("number", "loss"): lambda: reference.mean_squared_error(x, y),
        ("number", "mae"): lambda: reference.mean_absolute_error(x, y),
        ("number", "rmse"): lambda: reference.root_mean_squared_error(x, y),
        ("number", "spearman"): lambda: stats.spearmanr(x, y).statistic,
        ("number", "pearson"): lambda: np.corrcoef(x, y)[0, 1],
        ("number", "r2"): lambda: reference.r2_score(x, y),
    }[form, name]()


def probabilities() -> np.ndarray:
    given = np.random.default_rng(7).dirichlet([1, 1, 1], 60)
    return given


def saved(form: str, metrics: dict[str, float]) -> Predictions:
    names = ["a", "b", "c"]
    if form == "class":
        columns = {"label": [names[n] for n in LABELS], "predicted": [names[n] for n in GUESSES]}
        columns |= {f"p_{name}": [f"{p:.6f}" for p in column] for name, column in zip(names, probabilities().T, strict=True)}
    elif form == "classes":
        joined = [["|".join(n for n, here in zip(names, row, strict=True) if here) for row in rows] for rows in (SETS, FOUND)]
        columns = dict(zip(("label", "predicted"), joined, strict=True))
    else:
        columns = {name: [f"{value:.9g}" for value in row] for name, row in zip(("label", "predicted"), NUMBERS, strict=True)}
    return Predictions(form, names if form != "number" else [], metrics, pd.DataFrame(columns))


OF_TWO_CLASSES = {("class", name) for name in ("f1", "auroc", "average_precision")}


@pytest.mark.parametrize(("form", "name"), sorted(METRICS.keys() - OF_TWO_CLASSES, key=str))
def test_weighted_metrics_equal_those_of_repeated_examples(form, name):
    whole = by_reference(form, name, np.arange(60))
    metric = metric_of(name, saved(form, {name: whole}))
    assert metric is not None and metric(np.ones(60)) == pytest.approx(whole, rel=1e-4)
    assert metric(WEIGHTS.astype(float)) == pytest.approx(by_reference(form, name, np.repeat(np.arange(60), WEIGHTS)), rel=1e-4)
    assert metric_of(name, saved(form, {name: whole + 0.1})) is None, "a task's own metric of the same name"
    assert metric_of("unheard_of", saved(form, {"unheard_of": 1.0})) is None


@pytest.mark.parametrize(("score", "name"), [(reference.roc_auc_score, "auroc"), (reference.average_precision_score, "average_precision")])
def test_weighted_metrics_of_two_classes(score, name):
    labels, second = np.arange(60) % 2, np.round(np.random.default_rng(8).random(60), 6)
    guesses, rows = (second > 0.5).astype(int), np.repeat(np.arange(60), WEIGHTS)
    table = pd.DataFrame({"label": labels, "predicted": guesses, "p_0": 1 - second, "p_1": second}).astype(str)
    whole = {name: score(labels, second), "f1": reference.f1_score(labels, guesses)}
    both = [metric_of(each, Predictions("class", ["0", "1"], whole, table)) for each in (name, "f1")]
    expected = [score(labels[rows], second[rows]), reference.f1_score(labels[rows], guesses[rows])]
    assert [metric(WEIGHTS.astype(float)) for metric in both] == pytest.approx(expected)
    of_one_class = both[0](np.where(labels, 0.0, 1.0))
    assert of_one_class == pytest.approx(score([0, 0], [0.1, 0.2]), nan_ok=True), "a resample of one class"


def test_a_loss_over_tokens_is_weighted_by_them():
    table = pd.DataFrame({"loss": ["1.0", "3.0"], "tokens": ["30", "10"]})
    predictions = Predictions(None, [], {"loss": 1.5, "perplexity": math.exp(1.5)}, table)
    assert metric_of("loss", predictions)(np.ones(2)) == 1.5
    assert metric_of("perplexity", predictions)(np.array([0.0, 1.0])) == pytest.approx(math.exp(3))
    of_one_token = pd.DataFrame({"loss": ["nan"], "tokens": ["0"]})
    longer = Predictions(None, [], predictions.metrics, pd.concat([table, of_one_token], ignore_index=True))
    assert metric_of("loss", longer)(np.ones(3)) == 1.5, "it has nothing to predict"


def test_predictions_are_read_as_they_were_written(tmp_path):
    (tmp_path / "test_predictions.csv").write_text('id,text,label,predicted\n0,"a\nb",NA,NA\n1,c,,NA\n', encoding="utf-8")
    results = {"kind": "class", "examples": 1, "metrics": {"accuracy": 1.0}, "classes": {"NA": {}}, "confusion": [[1]]}
    found = read_predictions(tmp_path, "test", results)
    assert found.table["text"].tolist() == ["a\nb"] and found.table["label"].tolist() == ["NA"]
    assert read_predictions(tmp_path, "test", results | {"examples": 2}) is None
    assert read_predictions(tmp_path, "test", results | {"metrics": {}}) is None
    assert read_predictions(tmp_path, "dev", results) is None


def test_runs_below_their_baseline_are_named():
    def row(run, value, mode="max"):
        return {"run": run, "selected_by": "f1", "mode": mode, "test_f1": value, "test_baseline": 0.5}

    assert warnings([row("good", 0.6), row("low", 0.4, "min")], Looks()) == []
    (found,) = warnings([row("good", 0.6), row("equal", 0.5), row("high", 0.61, "min")], Looks())
    assert "equal (test F1 0.500 against 0.500), high (test F1 0.610 against 0.500)." in found and "good" not in found
    (found,) = warnings([row(f"run{n}", 0.1) for n in range(7)], Looks())
    assert found.endswith("and 2 more.")


@pytest.mark.parametrize("seeds", [2, 3])
def test_equal_configurations_are_seldom_called_better(seeds):
    assert simulation.rate(seeds, simulation.Population(), repeats=200) <= 0.05


def test_adding_seeds_until_it_says_better_is_corrected():
    found = simulation.rates_of_looking(range(2, 9), simulation.Population(of_seeds=0.4), repeats=300)
    assert found["each look at 5 %"] > 0.1 and found["a level for each look"] <= 0.05


def test_looks_are_counted_although_others_are_the_best_then():
    looks, groups = (
        Looks(),
        {name: group(name, [answers(right), answers(right, seed=1)]) for name, right in (("a", 180), ("b", 170), ("c", 160))},
    )
    assert "95 % interval" in verdict(list(groups.values()), lambda run, split: None, looks)
    groups["c"] = group("c", [answers(190, seed=seed) for seed in range(3)])
    found = verdict(list(groups.values()), lambda run, split: None, looks)
    assert found.startswith("c ") and "98.75 % interval" in found


def test_each_look_with_more_seeds_has_a_lower_level():
    every = {"a": [answers(150 + 8 * n, seed=n) for n in range(4)], "b": [answers(110 + 8 * n, seed=n + 9) for n in range(4)]}
    saved = {f"{name}-{n}": of_answers(each) for name, several in every.items() for n, each in enumerate(several)}
    looks = Looks()

    def look(seeds: int, **changes) -> str:
        groups = [group(name, several[:seeds], **changes) for name, several in every.items()]
        return verdict(groups, lambda run, split: saved[run], looks)

    assert "95 % interval" in look(1) and "McNemar" in look(1), "of two models, which is no look at their settings"
    assert "95 % interval" in look(2) and "before" not in look(2)
    assert "98.75 % interval" in look(3) and "compared once before with fewer or other seeds" in look(3) and "level of 1.25 %" in look(3)
    assert "99.44 % interval" in look(4) and "compared twice" not in look(4) and "compared 2 times before" in look(4)
    assert "95 % interval" in look(2), "the first look, again"
    assert "95 % interval" in look(4, test_examples_digest="other"), "another test set"
    assert "95 % interval" in look(4, configuration="other"), "other settings"
    ours, theirs = [0.82, 0.85, 0.80], [0.78, 0.77]
    second = over_seeds(ours, theirs, None, level_of(2))
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.9875)
    assert (second.low, second.high) == pytest.approx((expected.low, expected.high))


def test_runs_with_other_test_examples_are_not_ordered_even_if_nothing_was_predicted():
    groups = [group(name, [answers(right)], test_examples_digest=name) for name, right in (("b", 120), ("a", 180))]
    assert "Their test sets have different examples or labels" in verdict(groups, lambda run, split: None)


def test_figures_are_rounded_half_up():
    assert rounded(0.7975) == "0.798" and rounded(319 / 400) == "0.798" and rounded(-0.0025) == "-0.003" and rounded(2.5, 0) == "3"
    assert rounded(0.00012345) == "0.00012" and rounded(1234567.0, 0) == "1,234,567" and rounded(0.0) == "0.000"
    assert rounded(None) == rounded(math.nan) == rounded(True) == "–"


@pytest.mark.parametrize(("examples", "t"), [(5, 2.776), (10, 2.262), (30, 2.045)])  # of a printed table of Student's t
def test_the_bootstrap_has_the_tails_of_the_expanded_interval(examples, t):
    evenly = np.stack([np.linspace(0, 1, 100_001), np.zeros(100_001)], 1)  # so that a quantile is its own share
    found, tail = bootstrap(evenly, examples), float(stats.norm.cdf(-t * math.sqrt(examples / (examples - 1))))
    assert (found.low, 1 - found.high) == pytest.approx((tail, tail), rel=0.01, abs=1e-6)


def test_a_training_whose_code_changed_in_its_middle_is_in_no_verdict():
    configurations = [group(name, [answers(right)]) for name, right in (("a", 180), ("b", 120), ("c", 100))]
    configurations[0]["members"][0]["mixed"] = "code.mine.py changed after step 4"
    saved = {f"{name}-0": of_answers(answers(right)) for name, right in (("a", 180), ("b", 120), ("c", 100))}
    assert verdict(configurations, lambda run, split: saved[run]).startswith("b is")
    row = configurations[0]["members"][0] | {"selected_by": "accuracy", "mode": "max"}
    assert warnings([row], Looks()) == [
        "Warning: mixed, and so neither ranked nor in the verdict: a-0 (code.mine.py changed after step 4)."
    ]
