"""`snaketrain publish`, with a stand-in for the hub that records what arrives."""

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import limits
import pytest
import yaml

from snaketrain.runtime.manifests import Manifest, digests, read_manifest, write_checked, write_json, write_manifest, write_text
from snaketrain.runtime.model_card import write_card

SCRIPTS = Path(__file__).resolve().parents[4]
TOKEN = "geheim-4711-abcdef-x"  # without the form of a token: only as one it is known
MODEL = "results/runs/small/selection/model"
WEIGHTS = os.urandom(5000)
PUBLISH = ("publish", "small", "--to", "me/tiny")


class Hub(BaseHTTPRequestHandler):
    """As far as an upload asks: who am I, repositories, branches, what is large, the large files, a commit."""

    def do_GET(self):
        self.server.seen.append(self.path)
        if self.path == "/api/whoami-v2":
            return self.answer(200 if self.headers["Authorization"] == f"Bearer {TOKEN}" else 401, {"name": "me"})
        if not (found := re.fullmatch(r"/api/models/(\w+/\w+)(/revision/\w+)?", self.path)) or found[1] not in self.server.repositories:
            return self.answer(404, {"error": "Repository not found"}, "RepoNotFound")
        about = self.server.repositories[found[1]]
        files = [{"rfilename": name} for name in about["files"]]
        return self.answer(200, {"id": found[1], "sha": f"{about['commits']:040x}", "private": about["private"], "siblings": files})

    def do_POST(self):
        self.server.seen.append(self.path)
        raw = self.rfile.read(int(self.headers["Content-Length"])) if self.headers["Content-Length"] else self.chunks()
        if self.path in self.server.refused:
            return self.answer(self.server.refused[self.path], {"error": f"no, {self.headers['Authorization']}"})
        if self.path == "/api/repos/create":
            asked = json.loads(raw)
            name = f"{asked['organization']}/{asked['name']}"
            private = asked.get("visibility") == "private"
            self.server.repositories[name] = {"private": private, "files": {".gitattributes": b""}, "commits": 1}
            return self.answer(200, {"url": f"{self.server.address}/{name}"})
        about = self.server.repositories["me/tiny"]
        if self.path == "/api/validate-yaml":
            return self.answer(200, {})
        if "/branch/" in self.path:
            return self.answer(200, {})
        if "/preupload/" in self.path:
            return self.answer(200, {"files": [self.mode(about, each) for each in json.loads(raw)["files"]]})
        if self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                each
                | ({} if each["oid"] in self.server.large else {"actions": {"upload": {"href": f"{self.server.address}/{each['oid']}"}}})
                for each in json.loads(raw)["objects"]
            ]
            return self.answer(200, {"objects": objects, "transfer": "basic"})
        assert "/commit/" in self.path
        about["commits"] += 1
        for line in map(json.loads, raw.splitlines()):
            self.server.lines.append(line)
            value = line["value"]
            if line["key"] == "file":
                about["files"][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                about["files"][value["path"]] = self.server.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del about["files"][value["path"]]
        return self.answer(200, {"commitUrl": f"{self.server.address}/me/tiny/commit/1", "commitOid": f"{about['commits']:040x}"})

    def do_PUT(self):
        self.server.seen.append(self.path)
        if self.server.on_put:
            self.server.on_put()
        content = self.rfile.read(int(self.headers["Content-Length"])) if self.headers["Content-Length"] else self.chunks()
        self.server.large[self.path.strip("/")] = content
        assert hashlib.sha256(content).hexdigest() == self.path.strip("/")
        self.answer(200, {})

    def mode(self, about, file):
        large, there = file["path"].endswith(".safetensors"), about["files"].get(file["path"])
        digest = there and (hashlib.sha256(there) if large else hashlib.sha1(b"blob %d\0" % len(there) + there)).hexdigest()
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": digest or None}

    def chunks(self):
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def answer(self, status, content, code=None):
        text = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(text)), "X-Error-Code": code}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.repositories, server.large, server.lines, server.seen, server.refused, server.on_put = {}, {}, [], [], {}, None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A finished run, with its card."""
    monkeypatch.chdir(tmp_path)
    run = Path("results/runs/small")
    made(run / "training", "train_model", {"train": {"seed": 0}}, {}, {"run": "small"})
    git = {"commit": "0123456789abcdef", "dirty": True}
    write_checked(run / "training/run.json", {"git": git, "code": {"training": "1", "own/task.py": "2"}})
    made(Path("results/data"), "prepare_data", {"data": {"name": "phrases"}}, {}, {"name": "phrases"})
    model = run / "selection/model"
    write_json(model / "config.json", {"architectures": ["BertForSequenceClassification"]})
    write_json(model / "tokenizer.json", {})
    (model / "model.safetensors").write_bytes(WEIGHTS)
    chosen = {"metric": "accuracy", "why": "step 6 is the best", "winner": {"step": 6, "metrics": {"accuracy": 0.75}}}
    write_json(run / "selection/selection.json", chosen)
    made(run / "selection", "select_checkpoint", {}, {}, {"run": "small"})
    results = {"split": "test", "metrics": {"accuracy": 0.7975, "loss": 0.5}, "baselines": {}}
    write_json(run / "evaluation/test_results.json", results)
    selection = read_manifest(run / "selection/manifest.json")
    made(run / "evaluation", "evaluate_model", {}, {"selection": selection.content}, {})
    write_card(read_manifest(run / "training/manifest.json"), read_manifest("results/data/manifest.json"), selection)
    return tmp_path


def made(folder: Path, stage: str, settings: dict, inputs: dict, facts: dict) -> None:
    names = sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name not in ("run.json", "README.md")
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder / "manifest.json", Manifest(stage, "1", settings, inputs, digests(folder, names), facts))


def environment(address: str, folder: Path, **changes: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    ours = {
        "PYTHONPATH": str(SCRIPTS),
        "HF_ENDPOINT": address,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": TOKEN,
    }
    return clean | ours | changes


def snaketrain(hub, folder: Path, *words: str, code: int = 0, **changes: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "snaketrain.cli", *words],
        cwd=folder,
        env=environment(hub if isinstance(hub, str) else hub.address, folder, **changes),
        capture_output=True,
        text=True,
        timeout=limits.seconds(120),
    )
    told = done.stdout + done.stderr
    assert done.returncode == code, told
    assert TOKEN not in told and "Traceback" not in told
    assert not code or len(done.stderr.splitlines()) == 1, done.stderr
    return told


def test_what_arrives_is_what_was_selected(hub, folder):
    told = snaketrain(hub, folder, *PUBLISH, "--private", "--result", "accuracy=owner/benchmark:default")
    there = hub.repositories["me/tiny"]
    assert there["private"] and there["commits"] == 2
    ours = {path.name: path.read_bytes() for path in Path(MODEL).iterdir()}
    assert ours["model.safetensors"] == WEIGHTS
    assert there["files"].keys() - ours.keys() == {".gitattributes", ".eval_results/snaketrain.yaml"}
    card = ours.pop("README.md").replace(f'"{MODEL}"'.encode(), b'"me/tiny"')
    assert there["files"]["README.md"] == card and b'.from_pretrained("me/tiny")' in card and MODEL.encode() not in card
    assert {name: there["files"][name] for name in ours} == ours
    (result,) = yaml.safe_load(there["files"][".eval_results/snaketrain.yaml"])
    assert result.pop("date") and result == {"dataset": {"id": "owner/benchmark", "task_id": "default"}, "value": 0.7975}
    message = "small: test accuracy 0.7975, code 0123456789ab with uncommitted changes"
    assert hub.lines[0]["value"]["summary"] == message and f"Commit: {message}" in told
    assert "test: accuracy 0.7975, loss 0.5" in told and "own/task.py" in told and told.endswith(f"Uploaded: {hub.address}/me/tiny\n")

    again = snaketrain(hub, folder, *PUBLISH, "--result", "accuracy=owner/benchmark:default")
    assert "me/tiny is there already, and private." in again and again.endswith("nothing was changed.\n") and there["commits"] == 2


def test_what_an_earlier_upload_left_is_deleted_and_all_else_stays(hub, folder):
    old = {".eval_results/snaketrain.yaml": b"old", "model-00001-of-00002.safetensors": b"old", "notes.md": b"mine"}
    hub.repositories["me/tiny"] = {"private": False, "files": dict(old), "commits": 1}
    told = snaketrain(hub, folder, *PUBLISH, "--revision", "second")
    assert hub.repositories["me/tiny"]["files"].keys() & old.keys() == {"notes.md"} and "Stays there: notes.md." in told
    assert {"/api/models/me/tiny/branch/second", "/api/models/me/tiny/commit/second"} <= set(hub.seen)
    assert told.endswith("/me/tiny/tree/second\n")
    assert "me/tiny is there and public" in snaketrain(hub, folder, *PUBLISH, "--private", code=1)


def test_a_dry_run_connects_to_nothing(hub, folder):
    told = snaketrain(hub, folder, *PUBLISH, "--dry-run", HF_TOKEN="", HF_HUB_OFFLINE="1")
    assert "model.safetensors" in told and "5,000 bytes" in told and "test: accuracy 0.7975" in told and hub.seen == []


def test_what_is_not_as_it_was_written_is_refused(hub, folder):
    assert "Runs that have: small." in snaketrain(hub, folder, "publish", "smal", "--to", "me/tiny", code=1)
    assert "It has: test/accuracy, test/loss" in snaketrain(hub, folder, *PUBLISH, "--result", "f1=a/b:c", code=1)
    card = Path(MODEL, "README.md")
    written = card.read_text()
    card.write_text(written.replace("0.7975", "0.9975"))
    assert "README.md: its first block does not have the metrics of the evaluation." in snaketrain(hub, folder, *PUBLISH, code=1)
    card.write_text(written.replace("library_name:", "license: mit\nlibrary_name:"))
    snaketrain(hub, folder, *PUBLISH, "--dry-run")
    Path(MODEL, "model.safetensors").write_bytes(WEIGHTS[:-1])
    assert "model.safetensors: is not what was written" in snaketrain(hub, folder, *PUBLISH, code=1)
    Path(MODEL, "model.safetensors").unlink()
    assert "model.safetensors: is missing" in snaketrain(hub, folder, *PUBLISH, code=1)
    assert hub.seen == []


def test_other_models_are_uploaded_as_they_are(hub, folder):
    run = Path("results/runs/small")
    Path(MODEL, "config.json").unlink()
    (run / "selection/manifest.json").unlink()
    write_json(run / "selection/adapter/adapter_config.json", {})
    made(run / "selection", "select_checkpoint", {}, {}, {"run": "small"})
    write_card(
        *(read_manifest(path) for path in (run / "training/manifest.json", "results/data/manifest.json", run / "selection/manifest.json"))
    )
    told = snaketrain(hub, folder, *PUBLISH)
    assert (
        "no model of transformers" in told
        and "There are no results of an evaluation" in told
        and "selection/adapter, for peft, is not uploaded" in told
    )
    assert b'load_file("model.safetensors")' in hub.repositories["me/tiny"]["files"]["README.md"]


@pytest.mark.parametrize(
    ("refused", "changes", "told"),
    [
        ({}, {"HF_TOKEN": ""}, "There is no token of the Hugging Face hub. Make a token"),
        ({}, {"HF_TOKEN": "hf_another0123456789"}, "the hub answers 401"),
        ({}, {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"),
        ({"/api/repos/create": 403}, {}, "The token may not write to me/tiny."),
        ({"/api/repos/create": 404}, {}, "Correct --to and --revision."),
        ({"/api/models/me/tiny/commit/main": 412}, {"HF_TOKEN": ""}, "answers 412 (no, Bearer ***). Wait some minutes."),
        ({"/me/tiny.git/info/lfs/objects/batch": 403}, {}, "The token may not write to me/tiny."),
        ({}, {"HF_ENDPOINT": "http://127.0.0.1:1"}, "http://127.0.0.1:1 cannot be reached"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(hub, folder, refused, changes, told):
    hub.refused = refused
    if refused and changes:  # that of a login
        write_text(folder / "home/token", TOKEN)
    assert told in snaketrain(hub, folder, *PUBLISH, code=1, **changes)


def test_an_interrupted_upload_goes_on(hub, folder):
    started = threading.Event()
    command = [sys.executable, "-m", "snaketrain.cli", *PUBLISH]
    held = threading.Event()
    hub.on_put = lambda: (started.set(), held.wait(limits.seconds(60)))
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which is ignored in background processes of a shell
    process = subprocess.Popen(
        command, cwd=folder, env=environment(hub.address, folder), stderr=subprocess.PIPE, text=True, preexec_fn=heard
    )
    assert started.wait(limits.seconds(60))
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=limits.seconds(60))[1]
    held.set()
    assert process.returncode == 130 and told == "Interrupted. The same command goes on: what has arrived is not sent twice.\n"
    assert hub.lines == []
    hub.on_put = None
    assert snaketrain(hub, folder, *PUBLISH).endswith(f"Uploaded: {hub.address}/me/tiny\n")
