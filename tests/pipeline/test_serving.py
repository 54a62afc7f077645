"""The best model of a finished workflow, found by its alias, loaded and served, offline."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import limits
import pytest

from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY
from snaketrain.tracking.mlflow_store import Store

TEXTS = ["a good film", "the story was boring and dull"]


@pytest.fixture(scope="module")
def uri(workspace, tmp_path_factory):
    """Everything that the follower records of the finished workflow, and the model that it registers."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"
    follow(workspace, uri)
    return uri


def follow(workspace: Path, uri: str) -> None:
    command = [
        warm_python(),
        REPOSITORY / "workflow/scripts/tools/follow_runs.py",
        "--results",
        workspace / "results",
        "--uri",
        uri,
        "--once",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def expected(workspace: Path, uri: str) -> list[dict]:
    """The champion's folder, loaded by transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    version = Store(uri).client.get_model_version_by_alias("words-words", "champion")
    folder = workspace / "results/runs" / version.tags["pipeline.run"] / "selection/model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found = [model(**tokenizer(text, return_tensors="pt")).logits.detach().softmax(-1)[0] for text in TEXTS]
    return [{"label": ["unkind", "kind"][int(p.argmax())], "score": pytest.approx(float(p.max()), rel=1e-4)} for p in found]


def test_the_champion_is_the_better_one_with_a_reason(workspace, uri):
    client = Store(uri).client
    champion = client.get_model_version_by_alias("words-words", "champion")
    values = {name: selection(workspace, name)["winner"]["value"] for name in ("small", "other")}
    assert float(champion.tags["pipeline.value"]) == max(values.values())
    assert champion.tags["pipeline.reason"].startswith("the first model: accuracy")
    follow(workspace, uri)
    assert [version.version for version in client.search_model_versions("name = 'words-words'")] == [champion.version]


def test_load_by_alias(workspace, uri):
    import mlflow

    mlflow.set_tracking_uri(uri)
    model = mlflow.pyfunc.load_model("models:/words-words@champion")
    assert model.predict(TEXTS) == expected(workspace, uri)
    assert model.input_example == ["a touching film"]
    assert "transformers==" in Path(mlflow.artifacts.download_artifacts("models:/words-words@champion/requirements.txt")).read_text()
    files = {file.name for file in Path(mlflow.artifacts.download_artifacts("models:/words-words@champion")).rglob("*")}
    assert "model.safetensors" in files and not [name for name in files if name.endswith((".pkl", ".pt", ".bin"))]


def test_served_over_http(workspace, uri):
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("mlflow"), "models", "serve", "--env-manager", "local", "--port", str(port)]
    environment = os.environ | {"MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    server = subprocess.Popen([*command, "--model-uri", "models:/words-words@champion"], env=environment, start_new_session=True)
    try:
        assert ask(server, port, {"inputs": ["a touching film"]})[0].keys() == {"label", "score"}
        assert ask(server, port, {"inputs": TEXTS}) == expected(workspace, uri)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_the_champions_page_has_metrics_data_and_its_version(workspace, uri):
    """It is the only model that MLflow lists: it has no copies of the others' files, so it could not load them."""
    import mlflow

    store = Store(uri)
    version = store.client.get_model_version_by_alias("words-words", "champion")
    (found,) = store.client.search_logged_models([store.experiment("words")])
    assert version.source == f"models:/{found.model_id}" and found.model_id in mlflow.pyfunc.load_model(version.source).metadata.model_id
    metrics = {metric.key: metric for metric in found.metrics}
    winner = selection(workspace, version.tags["pipeline.run"])["winner"]
    assert metrics["dev/accuracy"].value == pytest.approx(winner["value"], rel=1e-4) and metrics["test/accuracy"].dataset_name == "words"
    assert found.params["train.batch_size"] == "16"
    assert json.loads(found.tags["mlflow.modelVersions"]) == [{"name": "words-words", "version": str(version.version)}]
    run = store.get(found.source_run_id)
    assert [model.model_id for model in run.outputs.model_outputs] == [found.model_id]
    assert len(store.client.get_metric_history(run.info.run_id, "test/accuracy")) == 1


def test_the_champion_is_a_transformers_pipeline_too_and_names_its_answers(workspace, uri):
    import mlflow

    mlflow.set_tracking_uri(uri)
    pipeline = mlflow.transformers.load_model("models:/words-words@champion")
    assert [pipeline(text)[0] for text in TEXTS] == expected(workspace, uri)
    signature = mlflow.models.get_model_info("models:/words-words@champion").signature
    assert signature.outputs.input_names() == ["label", "score"]


def selection(workspace: Path, run: str) -> dict:
    return json.loads((workspace / f"results/runs/{run}/selection/selection.json").read_text())


def ask(server: subprocess.Popen, port: int, question: dict) -> list[dict]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )

    def answer() -> list[dict] | None:
        try:
            return json.load(urllib.request.urlopen(request, timeout=limits.seconds(60)))["predictions"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None
        except OSError:
            return None

    return limits.until(answer, 120, server)
