"""Batches take examples of several training sets in the shares that are asked for, each set in epochs of its own, whatever follows later."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pipeline.workspace import write_tokenizer

from snaketrain.checking.planned import planned_data
from snaketrain.config.runs import read, read_runs
from snaketrain.config.schema import Data, Settings, Train
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.loading import batches, open_table
from snaketrain.data.loading.batches import shard_batch
from snaketrain.data.preparing import prepare
from snaketrain.extras.mixtures.check import problems_of_runs
from snaketrain.extras.mixtures.phases import UNITS, taken
from snaketrain.extras.mixtures.sampling import MixedBatches, MixedLengths, drawn
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.training.plan import Plan

SIZES = {"train": 300, "code": 90, "clean": 50}
TOKENS = {"train": 20.0, "code": 60.0, "clean": 10.0}
DATA = {
    "train": {"path": "web.csv"}, "dev": {"path": "dev.csv"}, "test_fraction": 0, "tokenizer": {"path": "tokenizer"},
    "train_sets": {"code": {"path": "code.csv"}, "clean": {"path": "clean.csv"}},
}  # fmt: skip
TWO = [{"until": 60, "sets": {"train": 0.7, "code": 0.3}}, {"sets": {"clean": 3, "train": 1}}]


def settings(mixture: dict[str, Any], **train: Any) -> Train:
    return Train.model_validate({"steps": 100, "batch_size": 16, "seed": 3, "mixture": mixture} | train)


def mixed(names: list[str]) -> MixedLengths:
    lengths = {name: np.random.default_rng(SIZES[name]).integers(3, 60, SIZES[name]) for name in names}
    return MixedLengths(lengths, TOKENS, {name: f"sha of {name}" for name in names})


def planned(train: Train) -> tuple[Plan, MixedBatches]:
    plan = Plan.of(train, mixed(train.mixture.sets_in_order))
    assert isinstance(plan.batches, MixedBatches)
    return plan, plan.batches


def steps_of(train: Train, after: int = 0) -> list[np.ndarray]:
    plan, mixture = planned(train)
    return [ids for _, of_epoch in mixture.after(after, plan.steps) for _, ids in of_epoch]


def by_set(train: Train, steps: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The examples of each set, in the order of the steps."""
    _, mixture = planned(train)
    found = {}
    for name, start in mixture.starts.items():
        of_set = np.concatenate([ids[(ids >= start) & (ids < start + SIZES[name])] for ids in steps])
        found[name] = of_set - start
    return found


def test_what_is_dealt_out_stays_and_reaches_the_shares_within_rounding():
    draw = random.Random(0)
    for _ in range(100):
        weights = [draw.uniform(0.01, 1) for _ in range(draw.randint(1, 6))]
        shares = [round(UNITS * weight / sum(weights)) for weight in weights]
        before = [0] * len(shares)
        for examples in range(1, 200):
            counts = taken(shares, examples)
            assert sum(counts) == examples and sorted(now - then for now, then in zip(counts, before, strict=True))[-2:] in ([0, 1], [1])
            assert all(
                abs(count - examples * share / sum(shares)) <= max(1, len(shares) / 2) for count, share in zip(counts, shares, strict=True)
            )
            before = counts


def test_each_phase_has_its_shares_and_each_batch_too():
    train = settings({"phases": TWO})
    steps = steps_of(train)
    assert len(steps) == 100 and {len(ids) for ids in steps} == {16}
    first, second = by_set(train, steps[:60]), by_set(train, steps[60:])
    assert {name: len(ids) for name, ids in first.items()} == {"code": 288, "train": 672, "clean": 0}
    assert {name: len(ids) for name, ids in second.items()} == {"code": 0, "train": 160, "clean": 480}
    assert {len(by_set(train, [ids])["code"]) for ids in steps[:60]} == {4, 5}


@pytest.mark.parametrize("section", [1 << 20, 64])
def test_nothing_of_a_set_comes_again_before_all_has_come(section, monkeypatch):
    monkeypatch.setattr(batches, "SECTION", section)
    monkeypatch.setattr(batches, "BLOCK", 16)
    train = settings({"phases": TWO})
    for name, walk in planned(train)[1].walks.items():
        ids, lengths = walk.between(0, 3 * SIZES[name])
        epochs = ids.reshape(3, SIZES[name])
        assert (
            (np.sort(epochs) == np.arange(SIZES[name])).all() and (epochs[0] != epochs[1]).any() and (epochs[0] != np.sort(epochs[0])).any()
        )
        assert (lengths == mixed([name]).sets[name][ids]).all()
        taken_in_all = by_set(train, steps_of(train))[name]
        assert sorted(taken_in_all) == sorted(walk.between(0, len(taken_in_all))[0])


@pytest.mark.parametrize("batch_size", [4, 7, 16])
def test_whatever_the_step_no_example_was_taken_twice_more_than_another(batch_size):
    """Sorted by length over several epochs of a set, the copies of an example came together, in one batch."""
    train = settings({"phases": TWO}, batch_size=batch_size)
    steps = steps_of(train)
    for name, start in planned(train)[1].starts.items():
        seen = np.zeros(SIZES[name], int)
        for ids in steps:
            np.add.at(seen, ids[(ids >= start) & (ids < start + SIZES[name])] - start, 1)
            assert seen.max() - seen.min() <= 1
    batch = mixed(["train"]).sets["train"][by_set(train, steps[:1])["train"]]
    assert batch.max() - batch.min() < 15, "of similar length"


def test_a_step_is_the_same_wherever_the_training_resumes_and_of_all_ranks_together():
    train = settings({"phases": TWO, "by": "tokens"})
    whole = steps_of(train)
    for after in (0, 37, 60, 61, 99):
        assert all((one == other).all() for one, other in zip(whole[after:], steps_of(train, after), strict=True))
    shares = [part.ids for rank in range(2) for part in shard_batch(whole[70], 2, rank, 2)]
    assert sorted(each for ids in shares for each in ids) == sorted(whole[70].tolist())
    assert any((one != other).any() for one, other in zip(whole, steps_of(settings({"phases": TWO, "by": "tokens"}, seed=4)), strict=True))


def test_weights_by_tokens_count_the_tokens_of_an_example():
    train = settings({"by": "tokens", "sets": {"train": 0.5, "code": 0.5}})
    counts = {name: len(ids) for name, ids in by_set(train, steps_of(train)).items()}
    tokens = {name: count * TOKENS[name] for name, count in counts.items()}
    assert tokens["code"] / sum(tokens.values()) == pytest.approx(0.5, abs=1e-3) and counts == {"code": 400, "train": 1200}


@pytest.mark.parametrize("last", [{"train": 1}, {"clean": 1, "code": 2}, {"code": 0.3, "train": 0.7}])
def test_steps_before_another_last_phase_are_the_same(last):
    one, other = settings({"phases": TWO}), settings({"phases": [TWO[0], {"sets": last}]}, steps=120)
    same = [(ours == theirs).all() for ours, theirs in zip(steps_of(one), steps_of(other), strict=False)]
    assert all(same[:60]) and not all(same[60:])
    (_, ours), (_, theirs) = planned(one), planned(other)
    begins = [(ours.begins(step), theirs.begins(step)) for step in range(1, 101)]
    assert begins[0][0] and [step for step, each in enumerate(begins, 1) if each[0]] == [1, 51, 61]
    assert [step for step, (our, their) in enumerate(begins, 1) if our != their] == [61]


def test_it_counts_how_often_each_set_is_seen():
    _, mixture = planned(settings({"phases": TWO}))
    assert mixture.times_seen(100) == {"code": 288 / 90, "train": 832 / 300, "clean": 480 / 50}
    assert mixture.count(0) == mixture.count(5) == 25  # 390 examples


def test_runs_with_another_last_phase_share_a_trunk():
    last = [{"clean": 1}, {"clean": 1, "code": 1}, {"train": 1}]
    config = {
        "data": DATA, "train": {"steps": 2000, "warmup": 20, "schedule": {"use": "warmup_stable_decay", "arguments": {"decay": 50}}},
        "runs": {f"last-{number}": {"train.mixture": {"phases": [{**TWO[0], "until": 1900}, {"sets": each}]}} for number, each in enumerate(last)},
    }  # fmt: skip
    pipeline = Pipeline(config, reads_files=False)
    (trunk,) = pipeline.stages["train_trunk"].jobs
    assert trunk.startswith("1900-steps-") and len({*map(str, pipeline.data_names.values())}) == 1
    assert all(trunk in pipeline.added("train_model", run)["trunk"][0] for run in config["runs"])
    shorter = {"phases": [{**TWO[0], "until": 1500}, {"sets": {"clean": 1}}]}
    config["runs"]["earlier"] = {"train.mixture": shorter}
    trunks = Pipeline(config, reads_files=False).stages["train_trunk"].trunks
    assert [each.branch_steps for each in trunks.plan.trunks.values()] == [(1500, 1900)]


def test_weights_make_the_training_stale_and_not_the_data():
    runs = {
        name: {"train.steps": 50, "train.mixture": {"sets": {"train": weight, "code": 1, "clean": 1}}}
        for name, weight in (("a", 1), ("b", 2))
    }
    pipeline = Pipeline({"data": DATA, "runs": runs}, reads_files=False)
    assert len(pipeline.datasets) == 1 and pipeline.stages["train_model"].settings("a") != pipeline.stages["train_model"].settings("b")
    (data,) = pipeline.datasets
    assert {*pipeline.stages["fetch_data"].sources(data)} == {"train", "dev", "train_sets.code", "train_sets.clean"}


def test_the_main_set_alone_is_planned_before_its_data_is_prepared(tmp_path):
    """As in a sweep over mixtures, of which another run takes the other sets."""
    write_tokenizer(tmp_path / "given")
    data = DATA | {"tokenizer": {"path": str(tmp_path / "given")}, "label": None}
    train = {"task": "causal_lm", "steps": 3, "mixture": {"sets": {"train": 1}}}
    found = planned_data(Settings.model_validate({"data": data, "train": train}), tmp_path / "results", tmp_path)
    assert isinstance(found.train.lengths, MixedLengths) and found.train.lengths.tokens == {"train": 128}


ALL = {"train": 1, "code": 1, "clean": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"mixture": {"sets": {"web": 1}}}}, "train.mixture: there is no training set 'web'; there are train, code, clean"),
        ({"train": {"mixture": {"sets": {"train": 0}}}}, "train.mixture.sets.train"),
        ({"train": {"mixture": {"sets": {"train": -1}}}}, "train.mixture.sets.train"),
        ({"train": {"mixture": {"phases": [{"until": 5, "sets": {}}, {"sets": ALL}]}}}, "train.mixture.phases.0.sets"),
        ({"train": {"mixture": {"phases": [{"until": 5}, {"sets": ALL}]}}}, "train.mixture.phases.0.sets"),
        ({"train": {"mixture": {}}}, "give `sets`, the weights of one phase, or `phases`"),
        ({"train": {"mixture": {"sets": ALL, "phases": TWO}}}, "and not both"),
        ({"train": {"mixture": {"phases": [{"until": 60, "sets": ALL}, {"until": 50, "sets": ALL}, {"sets": ALL}]}}}, "until step 50 follows one until"),
        ({"train": {"mixture": {"phases": [{"until": 60, "sets": ALL}]}}}, "the last phase ends with the training: remove its `until` (60)"),
        ({"train": {"mixture": {"phases": [{"sets": ALL}, {"sets": ALL}]}}}, "phase 1 has no `until`"),
        ({"train": {"mixture": {"phases": [{"until": 100, "sets": ALL}, {"sets": ALL}]}}}, "until step 100 leaves none of the 100 steps"),
        ({"train": {"mixture": {"sets": ALL}, "steps": None}}, "train.mixture needs the number of steps"),
        ({"train": {"mixture": {"sets": ALL}, "batch_tokens": 500}}, "set train.batch_size instead"),
        ({"data": {"train_sets": {"train": {"path": "a.csv"}}}}, "'train' stands for data.train: use another name"),
        ({"data": {"train_sets": {"a b": {"path": "a.csv"}}}}, "'a b' cannot be a name"),
        ({"data": {"train_sets": {"code": {}}}}, "data.train_sets.code: names nothing"),
        ({"data": {"train": None, "labels": {0: "a", 1: "b"}}}, "data.train_sets are mixed with data.train, which is missing"),
        ({"data": {"train_sets": {"code": {"use": "sklearn.datasets.load_digits"}}}}, "a dataset class"),
    ],
)  # fmt: skip
def test_what_cannot_be_mixed_is_refused(changes, message):
    config = {"data": DATA | changes.get("data", {}), "train": {"steps": 100} | changes.get("train", {})}
    found = read(config).problems
    assert any(message in problem for problem in found), found


def test_where_nothing_is_trained_a_mixture_takes_nothing():
    mixture = {"sets": ALL}
    config = {"data": DATA | {"labels": {0: "a", 1: "b"}}, "train": {"steps": 0, "mixture": mixture}}
    assert not [problem for problem in read(config).problems if "train.mixture" in problem]
    assert drawn("the examples", None, settings(mixture, steps=0)) == "the examples"


@pytest.mark.parametrize(
    ("section", "setting", "value", "message"),
    [
        ("train", "sampling", {"power": 0.5}, "both say which examples are taken: remove one"),
        ("data", "shards", 4, "not in shards: remove data.shards"),
    ],
)
def test_it_excludes_settings_of_other_extras(section, setting, value, message):
    if setting not in (Train if section == "train" else Data).model_fields:
        pytest.skip("that extra is not there")
    config = {"data": DATA | {"labels": {0: "a", 1: "b"}}, "train": {"steps": 100, "mixture": {"sets": ALL}}}
    assert any(message in problem for problem in read(config | {section: config[section] | {setting: value}}).problems)


def write(path: Path, rows: list[tuple[str, object]]) -> list[Path]:
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return [path]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a warm film", 2), "data.train_sets.code: code.csv, line 2 is of class '2', which no training row has"),
        (
            ("a warm film", ""),
            "data.train_sets.code: no usable example among its 1 rows|no row of train_sets.code has a value in column 'label'",
        ),
    ],
)
def test_a_set_has_the_classes_of_the_training_data(tmp_path, row, message):
    with pytest.raises(BadData) as error:
        prepared(tmp_path, [row])
    assert any(each in str(error.value) for each in message.split("|")), error.value


def test_a_set_is_a_split_of_its_own_whose_texts_are_trained_on(tmp_path):
    facts, issues = prepared(tmp_path, [("the film is great", 1), ("This film was DULL", 0), ("a cold plot", 0)])
    assert {split: found["examples"] for split, found in facts["splits"].items()} == {"train": 2, "dev": 2, "test": 0, "train_sets.code": 3}
    assert facts["splits"]["train_sets.code"]["label_counts"] == [2, 1] and facts["rows"]["train_sets.code"] == 3
    assert issues.counts["leaked_dev"] == 1 and issues.examples["leaked_dev"] == ["dev.csv, line 2: this film was dull"]
    table = open_table([tmp_path / "train_sets.code.arrow"])
    assert table["text"].to_pylist() == ["the film is great", "This film was DULL", "a cold plot"]


def prepared(folder: Path, rows: list[tuple[str, object]]) -> tuple[dict[str, Any], DataIssues]:
    """Of small sets, and `rows` as the set `code`."""
    write_tokenizer(folder / "tokenizer")
    sets = {
        "train": [("a great film", 1), ("a dull film", 0)],
        "dev": [("this film was dull", 0), ("the plot is warm", 1)],
        "train_sets.code": rows,
    }
    files = {split: write(folder / f"{split.rpartition('.')[2]}.csv", of_split) for split, of_split in sets.items()}
    data = {"train": {"path": "train.csv"}, "dev": {"path": "dev.csv"}, "test_fraction": 0, "tokenizer": {"path": "tokenizer"}}
    reading = Data.model_validate(data | {"train_sets": {"code": {"path": "code.csv"}}})
    return prepare(reading, files, folder, folder / "tokenizer", folder)


def test_sets_that_no_run_takes_are_refused():
    def problems(*mixtures: dict[str, float], data: dict[str, Any] = DATA) -> list[str]:
        runs = {str(number): {"train.steps": 9, "train.mixture": {"sets": each}} for number, each in enumerate(mixtures)}
        return list(problems_of_runs(read_runs({"data": data, "runs": runs})))

    assert problems({"train": 1, "code": 1}, {"clean": 1}) == []
    assert problems({"train": 1, "code": 1}) == [
        "data.train_sets.clean: no run's train.mixture takes examples of it. Give it a weight, or remove it."
    ]
    assert problems({"code": 1, "clean": 1})[0].startswith("data.train: no run's train.mixture takes examples of it")


def test_it_tells_shares_and_repetitions(caplog):
    from snaketrain.extras.mixtures.training import before_attempt

    caplog.set_level("INFO")
    plan, _ = planned(settings({"phases": TWO}))
    (recorded,) = before_attempt(SimpleNamespace(plan=plan))  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        "train.mixture: steps 1 to 60: of the examples 30.0% code, 70.0% train",
        "train.mixture: steps 61 to 100: of the examples 75.0% clean, 25.0% train",
        "train.mixture: how often each example is taken: code 3.20, train 2.77, clean 9.60",
        "train.mixture: each example of clean is taken 9.6 times: give it more examples, or less weight",
    ]
    figures = {"loss": 1.0}
    recorded.on_log(SimpleNamespace(step=60), figures)
    assert figures == {"loss": 1.0, "times_seen_code": 3.2, "times_seen_train": 2.24, "times_seen_clean": 0.0}
