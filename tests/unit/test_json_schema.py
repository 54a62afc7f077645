"""config/schema.json accepts the configurations that come with the project, and refuses what the workflow refuses by its name, type or bounds."""

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from snaketrain.config.schema.base import with_numbers

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "config"
FILES = [CONFIG / "config.yaml", *sorted((CONFIG / "examples").glob("*.yaml"))]


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    found = json.loads((CONFIG / "schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def test_every_reference_leads_somewhere(schema):
    """Two settings classes of one name would be told apart by longer ones."""
    named = set(re.findall(r'"\$ref": "#/\$defs/(\w+)', json.dumps(schema.schema)))
    assert len(named) > 20 and named <= schema.schema["$defs"].keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_accepts_ours(schema, file):
    text = file.read_text(encoding="utf-8")
    config = with_numbers(yaml.safe_load(text))  # editors read YAML 1.2, where 1e-4 is a number
    assert [error.message for error in schema.iter_errors(config)] == []
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (file.parent / named).resolve() == CONFIG / "schema.json"


@pytest.mark.parametrize(
    "config",
    [
        {"train": {"schedule": "cosine", "metrics": ["f1", "accuracy"]}, "data": "films", "datasets": {"films": {"text": "review"}}},
        {"runs": {"plain": None, "wide": {"train": {"batch_size": 64}, "model.arguments.hidden_size": 8, "train.metrics.f1.mode": "max"}}},
        {"sweeps": {"rate": {"train.learning_rate": [1e-5, 3e-5], "data": ["films", "books"]}}},
        {"verdicts": {"warmup": {"runs": ["a", "b"]}}},
        {"search": {"rate": {}, "wide": {"space": {"train.learning_rate": {"low": 1e-6, "high": 1e-3}}}}},
    ],
    ids=str,
)
def test_accepts(schema, config):
    assert [error.message for error in schema.iter_errors(config)] == []


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"trian": {}}, "$"),
        ({"train": {"stategy": "ddp"}}, "$.train"),
        ({"train": {"epochs": -1}}, "$.train.epochs"),
        ({"train": {"precision": "fp12"}}, "$.train.precision"),
        ({"runs": {"a b": {}}}, "$.runs"),
        ({"runs": {"a": {"train.learning_rat": 1}}}, "$.runs.a"),
        ({"runs": {"a": {"train.learning_rate": "high"}}}, "$.runs.a['train.learning_rate']"),
        ({"sweeps": {"a": {"train.seed": 3}}}, "$.sweeps.a['train.seed']"),
        ({"datasets": {"films": {"txt": "review"}}}, "$.datasets.films"),
        ({"search": {"rate": {"kep": 0.5}}}, "$.search.rate"),
        ({"verdicts": {"warmup": {"runs": ["a"]}}}, "$.verdicts.warmup"),
    ],
    ids=str,
)
def test_refuses(schema, config, place):
    assert [error.json_path for error in schema.iter_errors(config)] == [place]
