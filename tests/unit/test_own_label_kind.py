"""A file added to `snaketrain/labels` is a label kind that all parts know."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lengthy

SCRIPTS = Path(__file__).resolve().parents[2] / "workflow/scripts"

GRADES = '''
"""`data.label_kind: grade`, classes that are in order."""

from snaketrain.labels.base import LabelKind
from snaketrain.labels.one_class import OneClassHead, OneClassParser, OneClassReport, OneClassTally


class GradeParser(OneClassParser):
    def parse(self, cell):
        return super().parse(cell).removesuffix(" stars")


class GradeHead(OneClassHead):
    metrics = {"loss": "min", "accuracy": "max", "distance": "min"}

    def sums(self, logits, labels):
        return super().sums(logits, labels) | {"distance": (logits.argmax(-1) - labels).abs().sum()}

    def measure(self, sums):
        return {"accuracy": super().measure(sums)["accuracy"], "distance": float(sums["distance"] / sums["count"])}


class GradeReport(OneClassReport):
    def score(self, labels, rows, confidence, bins):
        return super().score(labels, rows, confidence, bins) | {"within_one": 1.0}


KIND = LabelKind("grade", GradeParser, OneClassTally, GradeHead(), GradeReport)
'''

USE = """
import json, sys
from pathlib import Path

import pytest
import numpy as np, pyarrow, torch
from snaketrain.config.schema import Data
from snaketrain.data.preparing import prepare
from snaketrain.data.tokenizer_files import copy_tokenizer
from snaketrain.evaluation.results import write_results
from snaketrain.orchestration.code_digest import SCRIPTS, code_digests
from snaketrain.orchestration.named_code import metrics_of_task
from snaketrain.labels import label_kind_file
from snaketrain.tasks.text_classification import TextClassification  # noqa: E402

folder, tokenizer = Path("work"), Path(sys.argv[1])
folder.mkdir()
(folder / "train.tsv").write_text("text\\tlabel\\n" + "".join(f"film {n}\\t{n % 3} stars\\n" for n in range(9)))
data = Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}, "label_kind": "grade", "dev_fraction": 0, "test_fraction": 0})
copy_tokenizer(tokenizer, folder / "tokenizer")
facts, _ = prepare(data, {"train": [folder / "train.tsv"]}, folder, folder / "tokenizer", folder)
labels = pyarrow.ipc.open_file(str(folder / "train.arrow")).read_all()["label"].to_pylist()

task = TextClassification()
model = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
task.build({"use": "transformers.BertForSequenceClassification", "arguments": model}, None, facts | {"vocab_size": 30, "pad_token_id": 0})
logits, batch = torch.eye(3)[[0, 1, 1] * 3], {"labels": torch.tensor(labels)}
metrics = task.measure(task.evaluation_step(logits, batch))
rows = {name: values.numpy() for name, values in task.predict(logits, batch).items()}
measured = {"examples": 9, "metrics": metrics, "baselines": {}}
results = write_results(folder, "r", "train", measured, rows, {"label": labels}, facts, 0.95, 10)
print(json.dumps({
    "labels": labels, "names": facts["label_names"], "metrics": metrics, "within_one": results["within_one"],
    "picture": (folder / "train_plots.png").is_file(),
    "modes": metrics_of_task(SCRIPTS / "snaketrain/tasks/text_classification.py", "TextClassification", "grade"),
    "code": [*code_digests(SCRIPTS / "train_model.py", label_kind_file("grade"))],
}))
try:
    Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}, "label_kind": "grad"})
except ValueError as error:
    print(error)
"""


def test_a_file_adds_a_label_kind(tmp_path, tiny_tokenizer):
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scripts/snaketrain/labels/grade.py").write_text(GRADES)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, 'scripts'){USE}", tiny_tokenizer]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, *refused = done.stdout.splitlines()
    found = json.loads(found)
    assert found["labels"] == [0, 1, 2] * 3 and found["names"] == ["0", "1", "2"]
    assert found["metrics"] == pytest.approx({"loss": found["metrics"]["loss"], "accuracy": 2 / 3, "distance": 1 / 3})
    assert found["modes"] == {"loss": "min", "accuracy": "max", "distance": "min"}
    assert found["within_one"] == 1 and found["picture"]
    assert {"snaketrain.labels.grade", "snaketrain.labels.one_class"} <= set(found["code"])
    assert "'class', 'classes', 'grade' or 'number'" in "".join(refused)
