"""Which model is registered, and which becomes champion."""

import json
from dataclasses import replace

import pytest
from unit.workspace import make_workspace

from snaketrain.extras.registry import registering
from snaketrain.extras.registry.registering import Contender, decide
from snaketrain.runtime.manifests import Manifest, digests, read_manifest, write_json, write_manifest

FIRST = Contender("first", 0.8, "accuracy", "max", "d1")


def other(value: float, **changes) -> Contender:
    return Contender(**{"run": "other", "value": value, "metric": "accuracy", "mode": "max", "data": "d1"} | changes)


@pytest.mark.parametrize(
    ("new", "registered", "champion", "registers", "moves_alias", "reason"),
    [
        (FIRST, [], None, True, True, "the first model"),
        (other(0.9), [FIRST], FIRST, True, True, "better than 0.8 of first"),
        (other(0.8), [FIRST], FIRST, False, False, "not better than 0.8 of first"),
        (other(0.2, mode="min", metric="loss"), [other(0.3, mode="min", metric="loss")], other(0.3, mode="min", metric="loss"), True, True, "better"),
        (other(0.4, mode="min", metric="loss"), [other(0.3, mode="min", metric="loss")], other(0.3, mode="min", metric="loss"), False, False, "not"),
        (other(0.9, data="d2"), [FIRST], FIRST, True, False, "other data"),
        (other(0.9, metric="f1"), [FIRST], FIRST, True, False, "accuracy, not f1"),
        (other(0.85), [FIRST, other(0.7, data="d2")], other(0.7, data="d2"), True, False, "other data"),
        (other(0.9), [], other(float("nan"), metric="unknown", data="unknown"), True, False, "by hand"),
    ],
)  # fmt: skip
def test_decisions(new, registered, champion, registers, moves_alias, reason):
    found = decide(new, registered, champion)
    assert (found.registers, found.moves_alias) == (registers, moves_alias) and reason in found.reason


def test_an_average_of_checkpoints_is_ranked_by_its_evaluation(tmp_path):
    """Its best checkpoint has another metric."""
    run = make_workspace(tmp_path, {"first": {"skill": 0.9}}) / "runs/first"
    chosen = json.loads((run / "selection/selection.json").read_text())
    write_json(run / "selection/selection.json", chosen | {"averaged": [60, 40], "winner": chosen["winner"] | {"value": 0.75}})
    selected, evaluated = (read_manifest(run / stage / "manifest.json") for stage in ("selection", "evaluation"))
    selected = replace(selected, files=digests(selected.folder, selected.files))
    write_manifest(selected.path, selected)
    write_manifest(evaluated.path, replace(evaluated, inputs={"selection": selected.content}))
    assert registering.contender_of(run).value == 0.9


def test_a_damaged_selection_is_not_due_and_ends_no_follower(tmp_path, monkeypatch):
    monkeypatch.setattr(registering, "is_servable", lambda folder: True)
    (tmp_path / "selection").mkdir()
    (tmp_path / "selection/selection.json").write_text(json.dumps({"winner": {"value": 0.9}}))
    write_manifest(tmp_path / "selection/manifest.json", Manifest("select_checkpoint", "x", {}, {}, {}, {}))
    assert registering.is_due(tmp_path, "sqlite:///mlflow.db", "1")
    (tmp_path / "selection/manifest.json").write_text("{}")
    assert not registering.is_due(tmp_path, "sqlite:///mlflow.db", "1")
