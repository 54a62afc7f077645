"""A trained classifier of texts or pairs as a folder in MLflow's format: as a plain function of texts, and as a transformers pipeline, with one copy of
the weights."""

import logging
import shutil
from importlib import metadata
from pathlib import Path

import mlflow
import transformers
from mlflow.models import Model
from mlflow.types import ColSpec, Schema

from snaketrain.runtime.manifests import write_json
from snaketrain.runtime.strict_json import Json
from snaketrain.tracking.tracked import finished_json

EXAMPLE: Json = ["a touching film"]
EXAMPLE_OF_PAIRS: Json = [{"text": "a touching film", "text_pair": "it moved me"}]
REQUIRED = ("mlflow", "torch", "transformers", "tokenizers", "safetensors", "numpy")
ANSWERS = Schema([ColSpec("string", "label"), ColSpec("double", "score")])
FILES = "model"  # the folder of the weights, among the artifacts


def save(model: Path, folder: Path, longest: int | None, pairs: bool, name: str, model_id: str) -> None:
    """`model`: a folder as `save_pretrained` writes it; `longest`: the number of tokens to which texts, or `pairs` of them, are cut."""
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    files = folder.parent / FILES
    shutil.copytree(model, files, ignore=shutil.ignore_patterns("*.pt"))  # only training needs these
    mlflow.pyfunc.save_model(
        folder,
        python_model=served_code(),
        artifacts={"model": str(files)},
        pip_requirements=[f"{package}=={metadata.version(package).partition('+')[0]}" for package in REQUIRED],  # inferring takes long
        model_config={"max_length": longest, "pairs": pairs},
    )
    described = Model.load(folder)
    described.model_id = model_id
    described.signature.outputs = ANSWERS  # in place: another signature would forget that its inputs are those of the type hint
    add_pipeline(described, folder, name)
    add_example(described, folder, EXAMPLE_OF_PAIRS if pairs else EXAMPLE)
    described.save(folder / "MLmodel")


def add_pipeline(described: Model, folder: Path, name: str) -> None:
    """So that `mlflow.transformers.load_model` loads it too."""
    files = folder / "artifacts" / FILES
    tokenizer = transformers.AutoTokenizer.from_pretrained(files, local_files_only=True)
    tokenizer.save_pretrained(folder / "components/tokenizer")
    described.add_flavor(
        mlflow.transformers.FLAVOR_NAME,
        transformers_version=transformers.__version__,
        code=None,
        task="text-classification",
        instance_type="TextClassificationPipeline",
        pipeline_model_type=finished_json(files / "config.json")["architectures"][0],
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


def served_code() -> str:
    return str(Path(__file__).with_name("served_classifier.py"))
