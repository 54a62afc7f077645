"""What MLflow can serve, and the model as a folder in its format: as a plain function and as a transformers model, with one copy of the weights."""

import logging
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import mlflow
from mlflow.models import Model
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

from snaketrain.config.schema.evaluation import Generate
from snaketrain.labels import label_kinds
from snaketrain.orchestration.named_code import TASKS
from snaketrain.runtime.manifests import write_json
from snaketrain.runtime.model_card import architecture_of
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import Json, JsonObject
from snaketrain.tracking import tracked
from snaketrain.tracking.stage_results import Evaluated

# --- What is served: classifiers of texts and pairs, and models that write text.


@dataclass(frozen=True)
class Served:
    code: str  # the file that MLflow keeps beside the weights and runs
    given: JsonObject  # what that file needs to know
    example: Json
    answers: Schema
    pipeline: tuple[str, str]  # its name and its class in transformers
    params: ParamSchema | None = None  # what a request can set


def served_as(folder: Path) -> Served | None:
    """How MLflow serves the selected model of the run in this folder; None if it is none that transformers can load, or of another kind."""
    run = tracked.read_json(folder / "training/run.json") or {}
    prepared, model = tracked.prepared(run, folder.resolve().parents[1]), folder / "selection/model"
    weights = (model / "model.safetensors").is_file() or (model / "model.safetensors.index.json").is_file()
    if prepared is None or not (weights and (model / "config.json").is_file() and (model / "tokenizer.json").is_file()):
        return None
    data, task = by_name(prepared.settings), run["settings"]["train"]["task"]
    if data.get("data.label"):
        kind = label_kinds().get(str(prepared.facts.get("label_kind")))
        return classifier(data, prepared.facts) if kind and kind.served else None
    return writer(task["use"], data, prepared.facts, generation(folder, task)) if task["use"] in TASKS else None


def classifier(data: JsonObject, facts: JsonObject) -> Served:
    pairs = len(data["data.text"]) == 2
    example: Json = [{"text": "a touching film", "text_pair": "it moved me"}] if pairs else ["a touching film"]
    answers, pipeline = (
        Schema([ColSpec("string", "label"), ColSpec("double", "score")]),
        ("text-classification", "TextClassificationPipeline"),
    )
    return Served("served_classifier.py", {"max_length": facts.get("max_length"), "pairs": pairs}, example, answers, pipeline)


def writer(task: str, data: JsonObject, facts: JsonObject, generate: Generate) -> Served:
    chats = bool(data.get("data.messages"))
    given = {"max_length": facts.get("max_length"), "pad": facts["pad_token_id"], "end": facts.get("end_token_id")}
    given |= {"chats": chats, "answers": len(data["data.text"]) == 2}
    example: Json = ['[{"role": "user", "content": "What is a cat?"}]' if chats else "What is a cat?"]
    # transformers 5 has no pipeline of the second kind: MLflow loads its components
    pipeline = (
        ("text-generation", "TextGenerationPipeline") if task == "causal_lm" else ("text2text-generation", "Text2TextGenerationPipeline")
    )
    params = [ParamSpec(name, "double" if name.endswith("penalty") else "long", value) for name, value in generate]
    return Served("served_writer.py", given, example, Schema([ColSpec("string")]), pipeline, ParamSchema(params))


def generation(folder: Path, task: JsonObject) -> Generate:
    """As in the evaluation of the run, else in that of its training, else with the defaults."""
    found = Evaluated.read(folder)
    of_evaluation = found.evaluated.settings["evaluate"].get("generate") if found and found.evaluated else None
    return Generate.model_validate(of_evaluation or task["arguments"].get("generate") or {})


# --- The folder in MLflow's format.

REQUIRED = ("mlflow", "torch", "transformers", "tokenizers", "safetensors", "numpy")
FILES = "model"  # the folder of the weights, among the artifacts


def save(model: Path, folder: Path, served: Served, name: str, model_id: str) -> None:
    """`model`: a folder as `save_pretrained` writes it."""
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    files = folder.parent / FILES
    shutil.copytree(model, files, ignore=shutil.ignore_patterns("*.pt"))  # only training needs these
    mlflow.pyfunc.save_model(
        folder,
        python_model=str(Path(__file__).with_name(served.code)),
        artifacts={"model": str(files)},
        pip_requirements=[f"{package}=={metadata.version(package).partition('+')[0]}" for package in REQUIRED],  # inferring takes long
        model_config=served.given,
    )
    described = Model.load(folder)
    described.model_id = model_id
    # in place: another signature would forget that its inputs are those of the type hint
    described.signature.outputs, described.signature.params = served.answers, served.params
    add_pipeline(described, folder, served, name)
    add_example(described, folder, served.example)
    described.save(folder / "MLmodel")


def add_pipeline(described: Model, folder: Path, served: Served, name: str) -> None:
    """So that `mlflow.transformers.load_model` loads it too."""
    import transformers  # takes seconds, and the follower does not need it

    files = folder / "artifacts" / FILES
    tokenizer = transformers.AutoTokenizer.from_pretrained(files, local_files_only=True)
    tokenizer.save_pretrained(folder / "components/tokenizer")
    described.add_flavor(
        mlflow.transformers.FLAVOR_NAME,
        transformers_version=transformers.__version__,
        code=None,
        task=served.pipeline[0],
        instance_type=served.pipeline[1],
        pipeline_model_type=architecture_of(files),
        source_model_name=name,
        model_binary=str(files.relative_to(folder)),
        components=["tokenizer"],
        tokenizer_type=type(tokenizer).__name__,
    )


def add_example(described: Model, folder: Path, example: Json) -> None:
    """What `save_model` does with an example, except that it would load the model and predict first, which takes many times as long."""
    kept = {"artifact_path": "input_example.json", "serving_input_path": "serving_input_example.json"}
    for name, content in zip(kept.values(), (example, {"inputs": example}), strict=True):
        write_json(folder / name, content)
    described.saved_input_example_info = {"type": "json_object", **kept}
