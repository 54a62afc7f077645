"""Register the best model of each run in MLflow, which can serve it, if it beats the models registered before. The follower does this."""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the package's folder

from snaketrain.extras.registry.serving import save, served_as
from snaketrain.runtime.credentials import hidden, hide_in_tracebacks, resolved
from snaketrain.runtime.manifests import read_manifest, read_result, write_checked
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tracking import tracked
from snaketrain.tracking.mlflow_store import Store, training_run
from snaketrain.tracking.stage_results import Evaluated
from snaketrain.tracking.tracked import LONGEST_KEY, LONGEST_TAG, cut
from snaketrain.tracking.views import short_name

# --- Which model gets the alias `champion`: decided by the selection metric alone, and only among models of the same data.


@dataclass(frozen=True)
class Contender:
    run: str
    value: float
    metric: str
    mode: str  # max or min
    data: str  # digest of its content

    def comparable(self, other: "Contender") -> bool:
        return (self.metric, self.mode, self.data) == (other.metric, other.mode, other.data)

    @property
    def rank(self) -> float:
        """Higher is better."""
        return self.value if self.mode == "max" else -self.value


@dataclass(frozen=True)
class Decision:
    registers: bool
    moves_alias: bool
    reason: str


def decide(new: Contender, registered: list[Contender], champion: Contender | None) -> Decision:
    """Only a model that beats all earlier ones on the same data is registered."""
    rivals = [other for other in registered if new.comparable(other)]
    ahead = next((other for other in rivals if not new.rank > other.rank), None)
    if ahead:
        return Decision(False, False, f"{new.metric} {new.value:.6g} is not better than {ahead.value:.6g} of {ahead.run}")
    if champion is None:
        return Decision(True, True, f"the first model: {new.metric} {new.value:.6g}")
    if not new.comparable(champion):
        other = "other data" if new.data != champion.data else f"{champion.metric}, not {new.metric}"
        return Decision(True, False, f"{champion.run} stays champion: it was chosen on {other}. Move the alias by hand to replace it.")
    return Decision(True, True, f"{new.metric} {new.value:.6g} is better than {champion.value:.6g} of {champion.run}")


ALIAS = "champion"


def register_best(folders: list[Path], store: Store) -> dict[str, str]:
    """The decision for each run. The best run comes first, so that worse ones are not registered before it."""
    return {folder.name: register(folder, store).reason for folder in sorted(folders, key=lambda folder: -contender_of(folder).rank)}


def register(folder: Path, store: Store) -> Decision:
    """Decide about the model of the run in this folder, and note the decision beside it: it is made once for each model."""
    run, new = finished_json(folder / "training/run.json"), contender_of(folder)
    run_id = training_run(folder.resolve().parents[1], run, store)
    if run_id is None:
        return Decision(False, False, "its run was deleted in MLflow")
    name = registry_name(run)
    decision = decide(new, *registered(store, name))
    if decision.registers:
        version = register_model(log_model(folder, run, run_id, store), name, run_id, decision.reason, store)
        for key, value in (asdict(new) | {"reason": decision.reason}).items():
            store.client.set_model_version_tag(name, version, f"pipeline.{key}", cut(value, LONGEST_TAG))
        if decision.moves_alias:
            store.client.set_registered_model_alias(name, ALIAS, version)
    write_checked(
        folder / "selection/.registered.json", decided_on(folder, store.uri, run_id) | {"model": name, "decision": decision.reason}
    )
    return decision


def contender_of(folder: Path) -> Contender:
    run = finished_json(folder / "training/run.json")
    selection = read_result(read_manifest(folder / "selection/manifest.json"), "selection.json")
    found = Evaluated.read(folder)
    value = selection["winner"]["value"] if found is None or found.value is None else found.value
    return Contender(run["run"], value, selection["metric"], selection["mode"], run["data"]["content"])


def decided_on(folder: Path, uri: str, run_id: str) -> dict[str, str]:
    return {"content": read_manifest(folder / "selection/manifest.json").content, "uri": uri, "run_id": run_id}


def is_due(folder: Path, uri: str, run_id: str) -> bool:
    """Whether there is a model that can be served and was selected by a metric, and about which nothing was decided yet.

    One whose code or settings changed in its middle is no contender: its settings do not lead to it.
    """
    if (tracked.read_json(folder / "training/run.json") or {}).get("mixed"):
        return False
    selection = tracked.read_json(folder / "selection/selection.json") or {}
    if (selection.get("winner") or {}).get("value") is None:
        return False
    if tracked.manifest(folder / "selection/manifest.json") is None:  # the next start of the workflow selects again
        return False
    before = tracked.read_json(folder / "selection/.registered.json") or {}
    return not decided_on(folder, uri, run_id).items() <= before.items() and is_servable(folder)


def is_servable(folder: Path) -> bool:
    return served_as(folder) is not None


def finished_json(path: Path) -> JsonObject:
    content = tracked.read_json(path)
    if content is None:
        raise ValueError(f"{path}: missing or damaged")
    return content


def registry_name(run: JsonObject) -> str:
    """One name for all models of an experiment on the same data set, also when its content changes."""
    return allowed_model_name(f"{tracked.experiment_of(run)}-{run['data']['name']}")


def allowed_model_name(name: str) -> str:
    """A model's name with characters that MLflow allows and that are safe in an address."""
    return "".join(c if c.isalnum() or c in "_-" else "-" for c in name)[:LONGEST_KEY]


def registered(store: Store, name: str) -> tuple[list[Contender], Contender | None]:
    found = [contender(version.tags) for version in store.client.search_model_versions(f"name = '{name}'")]
    try:
        champion = store.client.get_model_version_by_alias(name, ALIAS)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):  # there is none
            raise
        champion = None
    of_unknown_origin = Contender(f"version {champion.version}", float("nan"), "unknown", "max", "unknown") if champion else None
    return [one for one in found if one], contender(champion.tags) or of_unknown_origin if champion else None


def contender(tags: dict[str, str]) -> Contender | None:
    """None for a version that was registered by hand, or whose registration was interrupted."""
    try:
        run, value, metric, mode, data = (tags[f"pipeline.{name}"] for name in ("run", "value", "metric", "mode", "data"))
    except KeyError:
        return None
    return Contender(run, float(value), metric, mode, data)


def register_model(model_id: str, name: str, run_id: str, why: str, store: Store) -> str:
    """The number of its version, which the model's page names too."""
    if not store.client.search_registered_models(f"name = '{name}'"):
        store.client.create_registered_model(name)
    version = str(store.client.create_model_version(name, f"models:/{model_id}", run_id, description=why, model_id=model_id).version)
    store.client.set_logged_model_tags(model_id, {MLFLOW_MODEL_VERSIONS: json.dumps([{"name": name, "version": version}])})
    return version


def log_model(folder: Path, run: JsonObject, run_id: str, store: Store) -> str:
    """The id of the run's best model in MLflow, saved there with everything that serving needs."""
    experiment, winner = tracked.experiment_of(run), finished_json(folder / "selection/selection.json")["winner"]
    name = allowed_model_name(f"{short_name(run['run'])}-step-{winner['step']}")
    tags = {"pipeline.data": str(run["data"]["content"]), "pipeline.content": read_manifest(folder / "selection/manifest.json").content}
    found = store.model(experiment, run_id, name, tracked.params(run["settings"]), tags)
    if found.status != LoggedModelStatus.READY:
        served = served_as(folder)
        assert served, "only what is servable is registered"
        with tempfile.TemporaryDirectory() as temporary:
            save(folder / "selection/model", Path(temporary, "saved"), served, name, found.model_id)
            store.client.log_model_artifacts(found.model_id, f"{temporary}/saved")
        store.client.finalize_logged_model(found.model_id, LoggedModelStatus.READY)
    outputs = store.get(run_id).outputs
    if found.model_id not in {model.model_id for model in (outputs.model_outputs if outputs else [])}:
        store.client.log_outputs(run_id, [LoggedModelOutput(found.model_id, winner["step"])])
    if results := Evaluated.read(folder):
        data = tracked.dataset(run, None)
        store.points(run_id, results.points(), (found.model_id, data["name"], data["digest"]))
    return str(found.model_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="FOLDER", help="folders of runs, such as results/runs/baseline")
    parser.add_argument("--uri", required=True, help="MLflow server or database")
    args = parser.parse_args()
    os.nice(10)  # trainings may be running on this machine
    hide_in_tracebacks()
    for name, reason in register_best(list(filter(is_servable, args.runs)), Store(resolved(args.uri))).items():
        print(hidden(f"{name}: {reason}"))


if __name__ == "__main__":
    main()
