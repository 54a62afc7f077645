"""Why two trainings part: each planted edit is found, with its step, alone and with another one; and what only the journals show."""

import itertools
from typing import Any

import pyarrow
import pytest
from pydantic import ValidationError
from test_trajectory import BASE, CODE, EDITS, FACTS, FILES, HERE, NEVER, made, parts

from snaketrain.config.schema import Model, Train
from snaketrain.extras.shared_steps import diff, trajectory
from snaketrain.extras.shared_steps.diff import Recorded, causes, different_data, report
from snaketrain.runtime.manifests import Manifest
from snaketrain.training.plan import Plan


class Planted(Recorded):
    @property
    def plan(self) -> Plan:
        return Plan.of(Train.model_validate(self.settings["train"]), [1] * 320)


def recorded(name: str, edit: dict[str, Any], *events: dict) -> Planted:
    train = Train.model_validate(BASE | edit.get("train", {}))
    model = Model.model_validate({"use": "transformers.BertModel"} | edit.get("model", {}))
    run = {"settings": {"model": model.as_json, "train": train.as_json}, "code": edit.get("code", CODE), "inputs": edit.get("inputs", {})}
    data = Manifest("prepare_data", "", {}, {}, FILES | edit.get("files", {}), FACTS | edit.get("facts", {}))
    return Planted(name, run | {"log_every": 5}, data, list(events))


@pytest.fixture(autouse=True)
def observing(monkeypatch):
    """The callback of the edits is in no file."""
    observes = lambda train: {n for n, each in enumerate(train.callbacks) if each.arguments.get("every") == 3}  # noqa: E731
    monkeypatch.setattr(trajectory, "observers", observes)
    monkeypatch.setattr(trajectory, "observing_files", lambda settings, code, observers: {"watch.py"} if observers else set())
    monkeypatch.setattr(diff, "different_data", lambda one, other: "other examples")


def named(edit: dict[str, Any], told: str) -> bool:
    """Whether what was edited is named."""
    settings = [f"{section}.{name}" for section in ("train", "model") for name in edit.get(section, {})]
    others = [name for name, now in edit.get("code", {}).items() if CODE.get(name) != now]
    others += [f"{role}: other weights" for role in edit.get("inputs", {})] + (["data: "] if {"files", "facts"} & edit.keys() else [])
    return any(word in told for word in settings + others)


def of_observers(edit: dict[str, Any]) -> bool:
    return bool(edit.get("train", {}).get("callbacks"))


@pytest.mark.parametrize(("edit", "step"), [(edit, step) for edit, step in EDITS if not of_observers(edit)])
def test_each_edit_is_found(edit, step):
    found = causes(recorded("one", {}), recorded("other", edit))
    assert (found[0].step if found else NEVER) == step
    assert not found or named(edit, found[0].what)
    assert not causes(recorded("one", edit), recorded("other", edit))


def test_pairs_of_edits_are_found():
    tried = 0
    for one, other in itertools.combinations([edit for edit, _ in EDITS if not of_observers(edit)], 2):
        both = {**one, **other}
        if any(name in one and name in other for name in both):
            train = {**one.get("train", {}), **other.get("train", {})}
            if set(one) & set(other) != {"train"} or len(train) < len(one["train"]) + len(other["train"]):
                continue  # the second would undo the first
            both["train"] = train
        try:
            edited = recorded("other", both)
        except ValidationError:  # they exclude each other
            continue
        found = causes(recorded("one", {}), edited)
        assert (found[0].step if found else NEVER) == parts(made(), made(**both)), both
        tried += 1
    assert tried > 400


def test_what_happened_in_the_trainings():
    attempt = {"event": "attempt", "resume_step": 0, "execution": HERE}
    losses = [{"event": "train", "step": step, "time": 0.0, "metrics": {"loss": 1 / step}} for step in (5, 10, 15)]
    one = recorded("one", {}, attempt, *losses)
    told = report(one, recorded("other", {}, attempt, *losses))
    assert told.splitlines() == [
        "Nothing that is recorded makes one and other differ, up to step 15.",
        "All 3 losses that both have logged are equal, to the bit.",
    ]
    elsewhere = attempt | {"resume_step": 7, "execution": HERE | {"processes": 2, "versions": {"torch": "2.14", "numpy": "2.3"}}}
    skipped = {"event": "bad_step", "step": 12, "processes": [0], "examples": []}
    changed = {"event": "train", "step": 15, "time": 0.0, "metrics": {"loss": 0.5}}
    told = report(one, recorded("other", {}, attempt, *losses[:2], elsewhere, skipped, changed))
    assert told.splitlines() == [
        "one and other part at step 8, by rounding alone:",
        "  executed otherwise: processes 1 and 2, torch 2.13 and 2.14",
        "  and from step 12: the update was skipped in other, for a non-finite loss or gradient, or a spike",
        f"Logged losses are equal up to step 10. The first that differs is train/loss at step 15: {1 / 15!r} and 0.5.",
    ]
    told = report(one, recorded("other", {}, attempt, *losses[:2], changed))
    assert "Nothing recorded explains that." in told
    other = recorded("other", {}, attempt, *losses)
    other.run["log_every"] = 1
    assert report(one, other).endswith("They have logged no loss at the same step."), "means over other steps"


def test_the_first_example_that_differs(tmp_path, monkeypatch):
    monkeypatch.undo()

    def data(name: str, texts: list[str], lines: list[int]) -> Manifest:
        table = pyarrow.table({"text": texts, "line": lines, "label": [0] * len(texts), "input_ids": [[ord(text[0])] for text in texts]})
        (tmp_path / name).mkdir()
        with pyarrow.ipc.new_file(str(tmp_path / name / "train.arrow"), table.schema) as file:
            file.write_table(table)
        return Manifest("prepare_data", "", {}, {}, {"train.arrow": name}, FACTS, path=str(tmp_path / name / "manifest.json"))

    one, other = data("one", ["a", "b", "c"], [1, 2, 3]), data("other", ["a", "c"], [1, 3])
    assert different_data(one, other) == "3 and 2 examples; the first that differs is number 1, line 2 and line 3: 'b' and 'c'"
    assert different_data(other, data("third", ["a", "c"], [1, 9])).startswith(
        "2 examples with equal tokens and labels; train.arrow differ"
    )
    (tmp_path / "one/train.arrow").unlink()
    assert different_data(one, other) == "prepared otherwise (train.arrow)"
