"""From which step a training must be repeated after an edit: the fingerprints of two trainings differ from there on, and not before."""

from typing import Any

import pytest

from snaketrain.config.schema import Model, Train
from snaketrain.extras.shared_steps import trajectory
from snaketrain.extras.shared_steps.trajectory import BY_THE_RATES, EXECUTION, WITHOUT_EFFECT, Trajectory, observing_files, trajectory_of
from snaketrain.orchestration import code_digest
from snaketrain.runtime.manifests import Manifest
from snaketrain.training.execution import execution_differences
from snaketrain.training.plan import Plan

STEPS, NEVER = 40, 41
CODE = dict.fromkeys(("snaketrain.training.step", "snaketrain.tasks.metrics", "snaketrain.training.early_stopping", "mine.py"), "1")
FILES = {"train.arrow": "1", "dev.arrow": "1", "test.arrow": "1", "tokenizer/tokenizer.json": "1", "report.json": "1"}
FACTS = {
    "name": "words",
    "label_names": ["a", "b"],
    "splits": {"train": {"examples": 320}, "dev": {"examples": 9}, "test": {"examples": 9}},
}
BASE: dict[str, Any] = {"batch_size": 32, "steps": STEPS, "schedule": "constant", "warmup": 10}
DECAY = {"use": "warmup_stable_decay", "arguments": {"decay": 0.1}}
HERE = {
    "strategy": "Single", "arguments": {}, "processes": 1, "nodes": 1, "accumulate": 1, "precision": "fp32", "devices": ["a CPU, 1 threads"],
    "versions": {"torch": "2.13", "numpy": "2.3"},
}  # fmt: skip
OBSERVER = [{"use": "watch.py:Watch", "arguments": {"every": 3}}]


def made(
    train: dict[str, Any] | None = None, model: dict[str, Any] | None = None, code: dict[str, str] | None = None, files: dict[str, str] | None = None,
    facts: dict[str, Any] | None = None, **others: Any,
) -> Trajectory:  # fmt: skip
    """The trajectory of a training, which these change."""
    settings = Train.model_validate(BASE | (train or {}))
    data = Manifest("prepare_data", "", {}, {}, FILES | (files or {}), FACTS | (facts or {}))
    execution = others.pop("execution", HERE)
    return trajectory_of(
        {"model": Model.model_validate({"use": "transformers.BertModel"} | (model or {})).as_json, "train": settings.as_json},
        code or CODE, others.pop("inputs", {}), data, execution,
        Plan.of(settings, [1] * 320), **others,
    )  # fmt: skip


def parts(one: Trajectory, other: Trajectory) -> int:
    """The first step whose weights differ."""
    return next((step for step in range(1, STEPS + 1) if one.at(step) != other.at(step)), NEVER)


# what is edited, and the step from which a training must be repeated
EDITS: list[tuple[dict[str, Any], int]] = [
    ({"train": {"steps": 60}}, NEVER),
    ({"train": {"steps": 60, "warmup": 0.25}}, 2),  # a share of more steps: the warm-up is longer
    ({"train": {"steps": None, "epochs": 4}}, NEVER),
    ({"train": {"warmup": 20}}, 2),
    ({"train": {"schedule": DECAY}}, 38),  # a tenth of the 30 steps after the warm-up; the first of them still has the whole rate
    ({"train": {"schedule": "linear"}}, 12),
    ({"train": {"evaluations_per_epoch": 3}}, NEVER),
    ({"train": {"evaluate_every": 7}}, NEVER),
    ({"train": {"save_every": 7}}, NEVER),
    ({"train": {"save_every_minutes": 7}}, NEVER),
    ({"train": {"early_stopping": {"patience": 2}}}, NEVER),
    ({"train": {"rollbacks_allowed": 0}}, NEVER),
    ({"train": {"bad_steps_allowed": 0}}, NEVER),
    ({"train": {"metrics": {"mcc": {"use": "matthews_correlation"}}}}, NEVER),
    ({"train": {"strategy": "ddp"}}, NEVER),
    ({"train": {"accumulate": 2}}, NEVER),
    ({"train": {"callbacks": OBSERVER}, "observers": {0}, "exempt": {"watch.py"}, "code": CODE | {"watch.py": "1"}}, NEVER),
    ({"train": {"callbacks": OBSERVER}}, 1),
    ({"train": {"learning_rate": 1e-3}}, 1),
    ({"train": {"batch_size": 16}}, 1),
    ({"train": {"seed": 1}}, 1),
    ({"train": {"weight_decay": 0.1}}, 1),
    ({"train": {"clip_norm": None}}, 1),
    ({"train": {"spike_factor": 10}}, 1),
    ({"train": {"freeze": ["bert.*"]}}, 1),
    ({"train": {"optimizer": "torch.optim.SGD"}}, 1),
    ({"train": {"groups": [{"match": "*.bias", "weight_decay": 0.5}]}}, 1),
    ({"train": {"task": {"use": "text_classification", "arguments": {"label_smoothing": 0.1}}}}, 1),
    ({"train": {"compile": True}}, 1),
    ({"train": {"deterministic": True}}, 1),
    ({"model": {"arguments": {"hidden_size": 8}}}, 1),
    ({"inputs": {"model": "other weights"}}, 1),
    ({"files": {"train.arrow": "2"}}, 1),
    ({"files": {"tokenizer/tokenizer.json": "2"}}, 1),
    ({"files": {"dev.arrow": "2"}}, NEVER),
    ({"files": {"test.arrow": "2", "report.json": "2"}}, NEVER),
    ({"facts": {"splits": {"train": {"examples": 320}, "dev": {"examples": 5}, "test": {"examples": 5}}}}, NEVER),
    ({"files": {"train_sets.code.arrow": "1"}, "facts": {"splits": {**FACTS["splits"], "train_sets.code": {"examples": 9}}}}, NEVER),
    ({"facts": {"label_names": ["a", "b", "c"]}}, 1),
    ({"code": CODE | {"snaketrain.training.step": "2"}}, 1),
    ({"code": CODE | {"mine.py": "2"}}, 1),
    ({"code": CODE | {"a_new_module": "1"}}, 1),
    ({"code": CODE | {"snaketrain.tasks.metrics": "2", "snaketrain.training.early_stopping": "2"}}, NEVER),
]


@pytest.mark.parametrize(("edit", "step"), EDITS)
def test_the_step_from_which_an_edit_trains(edit, step):
    assert parts(made(), made(**edit)) == step


def test_prepared_shards_count_by_what_is_trained_on():
    """The folder of a part is named after all settings of the data, and its files follow one another in the order of the manifest."""

    def sharded(*shas: str, key: str = "k", dev: str = "d") -> Trajectory:
        parts = {
            f"parts/{key}{number}/{split}.arrow": sha for number, one in enumerate(shas) for split, sha in (("train", one), ("dev", dev))
        }
        return made(files=dict.fromkeys(FILES, "") | parts)

    first = sharded("1", "2")
    assert parts(first, sharded("1", "2", key="other settings")) == parts(first, sharded("1", "2", dev="e")) == NEVER
    assert parts(first, sharded("2", "1")) == parts(first, sharded("1", "3")) == parts(first, sharded("1")) == 1
    assert first.measures == sharded("1", "2", key="other settings").measures != sharded("1", "2", dev="e").measures


def test_if_evaluations_change_the_weights_their_steps_count():
    """For example, because the learning rate falls at a plateau."""
    first = made(cadence={})
    assert parts(first, made(cadence={})) == NEVER
    for train in ({"evaluate_every": 7}, {"save_every": 7}, {"metrics": {"mcc": {"use": "matthews_correlation"}}}):
        assert parts(first, made(train, cadence={})) == 1
    assert parts(first, made(cadence={}, files={"dev.arrow": "2"})) == 1
    assert parts(first, made(cadence={"log_every": 7})) == 1
    assert parts(first, made(cadence={}, code=CODE | {"snaketrain.training.early_stopping": "2"})) == 1


def test_a_training_that_is_executed_otherwise_takes_over_nothing():
    record = made().record(20, 0)
    assert made().contains(20, record) and made({"train": {"steps": 60}}["train"]).contains(20, record)
    others: list[tuple[dict[str, Any], str]] = [
        ({"strategy": "Ddp"}, "strategy Single, here Ddp"),
        ({"arguments": {"every": 16}}, "arguments {}, here {'every': 16}"),
        ({"processes": 2}, "processes 1, here 2"),
        ({"nodes": 2}, "nodes 1, here 2"),
        ({"accumulate": 16}, "accumulate 1, here 16"),
        ({"precision": "bf16"}, "precision fp32, here bf16"),
        ({"devices": ["a CPU, 2 threads"]}, "devices a CPU, 1 threads, here a CPU, 2 threads"),
        ({"versions": {"torch": "2.14", "numpy": "2.3"}}, "torch 2.13, here 2.14"),
        ({"versions": {"torch": "2.13", "numpy": "2.3", "own": "1"}}, "own none, here 1"),
    ]
    for change, told in others:
        other = made(execution=HERE | change)
        assert parts(made(), other) == NEVER and other.follows(20, record), "equal up to rounding"
        assert not other.contains(20, record)
        assert execution_differences(record["execution"], other.execution) == [told]
    assert HERE.keys() == {name for change, _ in others for name in change}


def test_metrics_are_valid_for_the_same_development_data_and_measures():
    first = made()
    same = [made({"steps": 60}), made({"evaluate_every": 2}), made(files={"test.arrow": "2"})]
    assert {each.measures for each in same} == {first.measures}
    others = [made(files={"dev.arrow": "2"}), made({"metrics": {"mcc": {"use": "matthews_correlation"}}})]
    others.append(made(code=CODE | {"snaketrain.tasks.metrics": "2"}))
    assert first.measures not in {each.measures for each in others}
    assert {each.at(5) for each in others} == {first.at(5)}


def test_more_bad_steps_than_are_allowed_would_have_led_to_a_rollback():
    first, record = made(), made().record(20, bad_steps=2)
    assert first.contains(20, record) and not first.contains(21, record) and not first.contains(20, None)
    assert made({"save_every": 7}).contains(20, record) and not made({"bad_steps_allowed": 1}).contains(20, record)


def test_the_schedule_of_one_group_is_not_that_of_another():
    """With the same rates at the same steps, but for other parameters."""
    first = {"groups": [{"match": "a.*", "schedule": "linear"}, {"match": "b.*"}]}
    second = {"groups": [{"match": "a.*"}, {"match": "b.*", "schedule": "linear"}]}
    assert parts(made(first), made(second)) == 1


def test_a_new_setting_decides_the_weights_until_it_is_listed_here():
    harmless = {*BY_THE_RATES, *WITHOUT_EFFECT, *EXECUTION}
    assert harmless < set(Train.model_fields)
    assert set(Train.model_fields) - harmless - {*Train.of_extras} == {
        "task", "batch_size", "batch_tokens", "block_length", "packing", "optimizer", "learning_rate", "weight_decay", "decay", "groups", "freeze",
        "clip_norm", "spike_factor", "callbacks", "trainer", "recompute_activations", "compile", "deterministic", "seed",
    }  # fmt: skip


def test_the_listed_modules_exist():
    from snaketrain.orchestration.code_digest import SCRIPTS

    for name in (*trajectory.MEASURING, *trajectory.NOT_MEASURING):
        assert (SCRIPTS / f"{name.replace('.', '/')}.py").is_file(), name


def test_a_file_of_an_observer_counts_where_another_one_imports_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watch.py").write_text("SCALE = 2\n")
    (tmp_path / "mine.py").write_text("import math\n")
    settings = {"train": Train.model_validate({"task": "mine.py:Mine", "callbacks": OBSERVER}).as_json}
    code = ("mine.py", "watch.py")
    assert observing_files(settings, code, {0}) == {"watch.py"} and observing_files(settings, code, ()) == set()
    code_digest._cached_read.cache_clear()
    code_digest._is_beside.cache_clear()
    (tmp_path / "mine.py").write_text("from watch import SCALE\n")
    assert observing_files(settings, code, {0}) == set()


def test_fingerprints_are_the_same_in_any_order_of_the_steps():
    steps = [20, 3, 40, 20, 7, 0]
    assert [made().at(step) for step in steps] == list(map(made().at, steps))
    assert len({made().at(step) for step in steps}) == len(set(steps))
