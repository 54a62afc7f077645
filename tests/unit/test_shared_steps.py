"""The picture of trainings that share their first steps."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from snaketrain.evaluation.page import branches_of, picture_of, rows_of

SVG = "{http://www.w3.org/2000/svg}"


def journal(last: int, reused: tuple[int, str] | None = None) -> list[dict[str, Any]]:
    event = [{"event": "reused", "step": reused[0], "training": reused[1]}] if reused else []
    return [*event, {"event": "train", "step": last}]


def written(folder: str, events: list[dict[str, Any]]) -> str:
    Path(folder).mkdir(parents=True)
    Path(folder, "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_runs_leave_trunks_and_trunks_each_other():
    first = written("results/trunks/9-steps/training", journal(9))
    second = written("results/trunks/15-steps/training", journal(15, (9, first)))
    runs = {
        Path("results/runs/short/training"): journal(12, (7, first)),
        Path("results/runs/long/training"): journal(20, (15, second)),
        Path("results/runs/alone/training"): journal(5),
    }
    found = branches_of(runs)
    assert {folder: found[folder].label for folder in rows_of(found)} == {
        Path(first): "9-steps 0 to 9",
        Path(second): "15-steps 9 to 15",
        Path("results/runs/long/training"): "long 15 to 20",
        Path("results/runs/short/training"): "short 7 to 12",
        Path("results/runs/alone/training"): "alone 0 to 5",
    }
    picture = ET.fromstring(picture_of(runs))
    lines = [(line.get("class"), line.get("x1"), line.get("y1")) for line in picture.iter(f"{SVG}line")]
    assert [kind for kind, _, _ in lines].count("leaves") == 3 and len({y for kind, _, y in lines if kind != "leaves"}) == 5
    assert {y for kind, _, y in lines if kind == "leaves"} <= {y for kind, _, y in lines if kind == "trunk"}


def test_names_are_escaped():
    trunk = written("results/trunks/<9>/training", journal(9))
    picture = ET.fromstring(picture_of({Path("results/runs/a&b/training"): journal(12, (9, trunk))}))
    assert [text.text for text in picture.iter(f"{SVG}text")] == ["<9> ", "a&b "]


def test_no_picture_without_shared_steps():
    assert picture_of({Path("results/runs/a/training"): journal(5), Path("results/runs/b/training"): journal(7, (3, "gone"))}) == ""


def test_trainings_that_continued_each_other_over_time():
    """One was trained again from the other, which had continued its earlier version."""
    one, other = (Path(f"results/runs/{name}/training") for name in "ab")
    events = {one: journal(9, (5, str(other))), other: journal(12, (9, str(one)))}
    for folder in events:
        written(str(folder), events[folder])
    assert list(rows_of(branches_of(events))) == [one, other]
