"""Writes the files of finished runs, as the stages do, without training anything."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.metrics import f1_score

from snaketrain.evaluation.results import draw, write_results
from snaketrain.runtime.manifests import Manifest, digest, digests, log_digests, read_manifest, write_checked, write_json, write_manifest
from snaketrain.runtime.strict_json import JsonObject

START = 1_700_000_000.0
LABELS = ["negative", "positive"]
SETTINGS = {
    "data.name": "phrases",
    "model.use": "transformers.AutoModelForSequenceClassification",
    "model.source.path": "model",
    "train.batch_size": 32,
    "train.learning_rate": 3e-05,
    "train.seed": 0,
    "select.metric": "accuracy",
}
FACTS = {
    "label_names": LABELS,
    "label_kind": "class",
    "name": "phrases",
    "splits": {"train": {"examples": 80, "labelled": True, "tokens": 900, "longest": 31, "label_counts": [40, 40]}},
    "odd": {"empty": 1},
    "max_length": 64,
    "vocab_size": 100,
    "pad_token_id": 0,
}


def make_workspace(folder: Path, runs: dict[str, dict] | None = None) -> Path:
    """A results folder. `runs`: what each changes in SETTINGS; besides `skill` (share of right answers), `ends`, `labelled` and `kind`."""
    results = Path(folder) / "results"
    prepared = results / "data/phrases-1234"
    write_json(prepared / "report.json", {"examples": 80, "odd": {"empty": 1}})
    _manifest(prepared / "manifest.json", "prepare_data", {"data": {"name": "phrases"}}, {}, FACTS)
    for number, (name, changes) in enumerate(
        (runs or {"first": {"skill": 0.9}, "second": {"skill": 0.7, "train.learning_rate": 1e-3}}).items()
    ):
        make_run(results / "runs" / name, name, dict(changes), prepared / "manifest.json", number)
    return results


def sections(settings: dict[str, Any]) -> JsonObject:
    """As the configuration has them, from their full names."""
    found: JsonObject = {}
    for name, value in settings.items():
        *parents, last = name.split(".")
        section = found
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return found


def make_run(folder: Path, name: str, changes: dict, data: Path, number: int) -> None:
    skill, ends, labelled = changes.pop("skill", 0.8), changes.pop("ends", "FINISHED"), changes.pop("labelled", True)
    metric, mode = ("mae", "min") if (kind := changes.pop("kind", "class")) == "number" else ("accuracy", "max")
    settings = sections({name: value for name, value in (SETTINGS | changes).items() if value != "missing"})
    prepared = read_manifest(data)
    run = {
        "run": name,
        "identity": digest("train_model", settings, {"data": prepared.content}),
        "started": START,
        "settings": settings,
        "code": {"train_model": "0123", "own/task.py": "4567"},
        "data": {"path": str(data), "content": prepared.content, "name": "phrases" if kind == "class" else "scores", "examples": 80},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "environment": {"python": "3.11", "torch": "2.13", "host": "laptop", "processes": 1},
        "experiment": "tests",
        "notes": "a *note*",
    }
    write_checked(folder / "training/run.json", run)
    (folder / "training/journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in journal(skill, ends, number)))
    if ends != "FINISHED":
        return
    facts = {"run": name, "steps": 60, "examples": 80, "parameters": 1000, "checkpoints": {"60": {"accuracy": skill}}}
    training = _manifest(folder / "training/manifest.json", "train_model", settings, {"data": prepared.content}, facts)
    winner = {
        "step": 60,
        "metrics": {metric: skill if mode == "max" else 1 - skill, "loss": 1 - skill},
        "path": "checkpoints/step-00000060",
    }
    write_json(
        folder / "selection/selection.json", {"run": name, "metric": metric, "mode": mode, "winner": winner, "ranking": [], "why": "."}
    )
    selection = _manifest(
        folder / "selection/manifest.json", "select_checkpoint", {}, {"training": training.content}, {"winner": 60, "run": name}
    )
    for split in ("dev", "test"):
        found = numbers(skill, number) if kind == "number" else predictions(skill, number, labelled or split == "dev")
        with patch("snaketrain.evaluation.results.draw", draw_once):
            write_results(folder / "evaluation", name, split, **found)
    _manifest(
        folder / "evaluation/manifest.json",
        "evaluate_model",
        {"evaluate": {"bins": 10}},
        {"selection": selection.content},
        {"skill": skill},
    )


PICTURE: list[bytes] = []


def draw_once(path: Path, *shown: Any) -> None:
    """The same picture for all runs: drawing takes twenty times as long as all else here."""
    if not PICTURE:
        draw(path, *shown)
        PICTURE.append(path.read_bytes())
    path.write_bytes(PICTURE[0])


def predictions(skill: float, seed: int, labelled: bool, examples: int = 200) -> dict:
    """The arguments of `write_results` for a classifier of this skill."""
    labels = np.random.default_rng(0).integers(0, 2, examples)  # all runs see the same examples
    random = np.random.default_rng(seed)
    right = random.permutation(examples) < round(skill * examples)
    sure = random.uniform(0.55, 0.99, examples)
    positive = np.where((labels == 1) == right, sure, 1 - sure)
    probabilities = np.stack([1 - positive, positive], axis=1)
    losses = -np.log(probabilities[np.arange(examples), labels])
    metrics = {"loss": losses.mean(), "accuracy": right.mean(), "macro_f1": f1_score(labels, positive > 0.5, average="macro")}
    given = labels if labelled else np.full(examples, -100)
    return {
        "measured": {
            "examples": examples,
            "metrics": {name: float(value) for name, value in metrics.items()} if labelled else {},
            "baselines": {},
        },
        "rows": {"ids": np.arange(examples), "probabilities": probabilities, "loss": losses},
        "table": {
            "text": [f'text, "{i}"\nof two lines' for i in range(examples)],
            "label": given.tolist(),
            "slice:source": [("web", "book")[i % 3 == 0] for i in range(examples)],
        },
        "facts": FACTS,
        "confidence": 0.95,
        "bins": 10,
    }


def numbers(skill: float, seed: int, examples: int = 200) -> dict:
    """The same for a regression: of `skill` 1 it is exactly right."""
    labels = np.random.default_rng(0).normal(3, 1, examples)
    random = np.random.default_rng(seed + 1)
    predicted = labels + (1 - skill) * random.normal(0, 2, examples)
    metrics = {"loss": np.square(predicted - labels).mean(), "mae": np.abs(predicted - labels).mean()}
    facts = {"label_kind": "number", "label_names": [], "splits": {"train": {"examples": 80, "labelled": True, "label_mean": 3.0}}}
    return {
        "measured": {"examples": examples, "metrics": {name: float(value) for name, value in metrics.items()}, "baselines": {}},
        "rows": {"ids": np.arange(examples), "predicted": predicted, "loss": np.square(predicted - labels)},
        "table": {"text": [f"text {i}" for i in range(examples)], "label": labels.tolist()},
        "facts": facts,
        "confidence": 0.95,
        "bins": 10,
    }


def journal(skill: float, ends: str, number: int) -> list[dict]:
    events = [{"event": "attempt", "attempt": 1, "resume_step": 0, "time": START}]
    for step in range(5, 65, 5):
        metrics = {"loss": round(0.9 * 0.97**step + 0.3 * (1 - skill), 4), "examples_per_second": 100.0 + number}
        events.append({"event": "train", "step": step, "time": START + step, "attempt": 1, "metrics": metrics})
        if step % 20 == 0:
            metrics = {"loss": round(1.2 - skill + 1 / step, 4), "accuracy": round(skill - 1 / step, 4)}
            events.append({"event": "eval", "step": step, "time": START + step + 0.5, "attempt": 1, "metrics": metrics})
    if ends != "nothing":
        events.append(
            {"event": "end", "status": ends, "time": START + 61, "step": 60, "attempt": 1, "seconds": 61.0, "peak_memory_mb": 512.5}
        )
    return events


def _manifest(path: Path, stage: str, settings: JsonObject, inputs: dict[str, str], facts: dict) -> Manifest:
    names = [
        each.name for each in path.parent.glob("*") if each.is_file() and not each.name.startswith((".", "manifest", "journal", "run"))
    ]
    logs = log_digests(path.parent, [each.name for each in path.parent.glob("journal.jsonl")])
    made = Manifest(stage, digest(stage, settings, inputs), settings, inputs, digests(path.parent, sorted(names)), facts, START + 62)
    write_manifest(path, replace(made, logs=logs))
    return read_manifest(path)
