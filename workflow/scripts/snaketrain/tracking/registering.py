"""Registers the best model of a run with MLflow, from where it can be served, if it beats those registered before."""

import shutil
import tempfile
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import mlflow
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from snaketrain.labels import label_kinds
from snaketrain.runtime.json_types import Json, JsonObject
from snaketrain.runtime.manifests import Manifest, read_manifest, write_json
from snaketrain.runtime.setting_strings import by_key
from snaketrain.tracking import tracked
from snaketrain.tracking.champions import Contender, Decision, decide
from snaketrain.tracking.mlflow_store import LONGEST_TAG, Store, allowed_model_name, cut
from snaketrain.tracking.run_keys import training_run

ALIAS = "champion"
EXAMPLE = ["a touching film"]
EXAMPLE_OF_PAIRS = [{"text": "a touching film", "text_pair": "it moved me"}]
REQUIRED = ("mlflow", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def register_best(folders: list[Path], store: Store) -> dict[str, str]:
    """The decision for each run. The best run comes first, so that worse ones are not registered on the way."""
    return {folder.name: register(folder, store).reason for folder in sorted(folders, key=lambda folder: -contender_of(folder).rank)}


def register(folder: Path, store: Store) -> Decision:
    """Decide about the model of the run in this folder, and note the decision beside it: it is made once for each model."""
    run, new = tracked.finished_json(folder / "training/run.json"), contender_of(folder)
    run_id = training_run(folder.resolve().parents[1], run, store)
    if run_id is None:
        return Decision(False, False, "somebody has deleted its run in MLflow")
    name = registry_name(run)
    decision = decide(new, *registered(store, name))
    if decision.registers:
        prepared = tracked.prepared(run, folder.resolve().parents[1])
        longest = prepared.facts.get("max_length") if prepared else None
        version = log_model(folder / "selection/model", name, run_id, longest, prepared is not None and has_pairs(prepared), store)
        for key, value in (asdict(new) | {"reason": decision.reason}).items():
            store.client.set_model_version_tag(name, version, f"pipeline.{key}", cut(value, LONGEST_TAG))
        if decision.crowns:
            store.client.set_registered_model_alias(name, ALIAS, version)
    write_json(folder / "selection/.registered.json", decided_on(folder, store.uri, run_id) | {"model": name, "decision": decision.reason})
    return decision


def contender_of(folder: Path) -> Contender:
    run, selection = (tracked.finished_json(folder / name) for name in ("training/run.json", "selection/selection.json"))
    return Contender(run["run"], selection["winner"]["value"], selection["metric"], selection["mode"], run["data"]["content"])


def decided_on(folder: Path, uri: str, run_id: str) -> dict[str, str]:
    return {"content": read_manifest(folder / "selection/manifest.json").content, "uri": uri, "run_id": run_id}


def is_due(folder: Path, uri: str, run_id: str) -> bool:
    """Whether there is a model that can be served, was selected by a metric, and has not been decided about."""
    selection = tracked.read_json(folder / "selection/selection.json") or {}
    if (selection.get("winner") or {}).get("value") is None:
        return False
    before = tracked.read_json(folder / "selection/.registered.json") or {}
    return is_servable(folder) and not decided_on(folder, uri, run_id).items() <= before.items()


def is_servable(folder: Path) -> bool:
    """Whether it is a classifier of texts or pairs that transformers can load."""
    run = tracked.read_json(folder / "training/run.json") or {}
    prepared = tracked.prepared(run, folder.resolve().parents[1])
    if prepared is None:
        return False
    kind = label_kinds().get(str(prepared.facts.get("label_kind")))
    model = folder / "selection/model"
    weights = (model / "model.safetensors").is_file() or (model / "model.safetensors.index.json").is_file()
    return kind is not None and kind.served and weights and (model / "config.json").is_file() and (model / "tokenizer.json").is_file()


def has_pairs(prepared: Manifest) -> bool:
    return len(by_key(prepared.settings).get("data.text") or ()) == 2


def registry_name(run: JsonObject) -> str:
    """One name for all models of an experiment on the same data set, also when its content changes."""
    return allowed_model_name(f"{run.get('experiment') or 'snaketrain'}-{run['data']['name']}")


def registered(store: Store, name: str) -> tuple[list[Contender], Contender | None]:
    """All models registered under a name, and the champion."""
    found = {version.version: contender(version.tags) for version in store.client.search_model_versions(f"name = '{name}'")}
    try:
        champion = store.client.get_model_version_by_alias(name, ALIAS)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):  # there is none
            raise
        champion = None
    return [one for one in found.values() if one], contender(champion.tags) or of_unknown_origin(champion) if champion else None


def contender(tags: dict[str, str]) -> Contender | None:
    """None for a version that was registered by hand, or not completely."""
    try:
        run, value, metric, mode, data = (tags[f"pipeline.{name}"] for name in ("run", "value", "metric", "mode", "data"))
    except KeyError:
        return None
    return Contender(run, float(value), metric, mode, data)


def of_unknown_origin(version: ModelVersion) -> Contender:
    return Contender(f"version {version.version}", float("nan"), "unknown", "max", "unknown")


def log_model(model: Path, name: str, run_id: str, longest: int | None, pairs: bool, store: Store) -> str:
    """Save the model with everything serving needs. Returns the number of its version."""
    requirements = [f"{package}=={metadata.version(package).partition('+')[0]}" for package in REQUIRED]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(model, f"{folder}/files", ignore=shutil.ignore_patterns("*.pt"))  # only training needs these
        mlflow.pyfunc.save_model(
            f"{folder}/model",
            python_model=served_code(),
            artifacts={"model": f"{folder}/files"},
            pip_requirements=requirements,  # MLflow would take long to infer them
            model_config={"max_length": longest, "pairs": pairs},
        )
        add_example(Path(folder, "model"), EXAMPLE_OF_PAIRS if pairs else EXAMPLE)
        store.client.log_artifacts(run_id, f"{folder}/model", "model")
    if not store.client.search_registered_models(f"name = '{name}'"):
        store.client.create_registered_model(name)
    source = f"{store.get(run_id).info.artifact_uri}/model"
    return str(store.client.create_model_version(name, source, run_id).version)


def add_example(saved: Path, example: Json) -> None:
    """What `save_model` does with an example, except that it would load the model and predict first, which takes many times as long."""
    kept = {"artifact_path": "input_example.json", "serving_input_path": "serving_input_example.json"}
    for name, content in zip(kept.values(), (example, {"inputs": example}), strict=True):
        write_json(saved / name, content)
    described = Model.load(saved)
    described.saved_input_example_info = {"type": "json_object", **kept}
    described.save(saved / "MLmodel")


def served_code() -> str:
    return str(Path(tracked.__file__).with_name("served_classifier.py"))
