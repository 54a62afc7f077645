"""A file added to `snaketrain/labels` is a label kind that all parts know."""

import shutil
import sys
from pathlib import Path
from types import ModuleType

import pyarrow
import pytest
import torch

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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the code, which is imported until the end of the test."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scripts/snaketrain/labels/grade.py").write_text(GRADES)
    monkeypatch.syspath_prepend(tmp_path / "scripts")
    before = taken_out()
    yield tmp_path
    taken_out()
    sys.modules.update(before)


def taken_out() -> dict[str, ModuleType]:
    """Our modules, which are imported anew where they are next named."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "snaketrain"}


def test_a_file_adds_a_label_kind(folder, tiny_tokenizer):
    from snaketrain.config.schema import Data
    from snaketrain.data.preparing import prepare
    from snaketrain.data.tokenizer_files import copy_tokenizer
    from snaketrain.evaluation.results import write_results
    from snaketrain.labels import label_kind_file
    from snaketrain.orchestration.code_digest import SCRIPTS, code_digests
    from snaketrain.orchestration.named_code import metrics_of_task
    from snaketrain.tasks.text_classification import TextClassification

    (folder / "train.tsv").write_text("text\tlabel\n" + "".join(f"film {n}\t{n % 3} stars\n" for n in range(9)))
    given = {"train": {"path": "x"}, "tokenizer": {"path": "x"}, "dev_fraction": 0, "test_fraction": 0}
    with pytest.raises(ValueError, match="'class', 'classes', 'grade'(,| or) 'number'"):
        Data.model_validate(given | {"label_kind": "grad"})
    copy_tokenizer(tiny_tokenizer, folder / "tokenizer")
    data = Data.model_validate(given | {"label_kind": "grade"})
    facts, _ = prepare(data, {"train": [folder / "train.tsv"]}, folder, folder / "tokenizer", folder)
    labels = pyarrow.ipc.open_file(str(folder / "train.arrow")).read_all()["label"].to_pylist()
    assert labels == [0, 1, 2] * 3 and facts["label_names"] == ["0", "1", "2"]

    task = TextClassification()
    model = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    task.build(
        {"use": "transformers.BertForSequenceClassification", "arguments": model}, None, facts | {"vocab_size": 30, "pad_token_id": 0}
    )
    logits, batch = torch.eye(3)[[0, 1, 1] * 3], {"labels": torch.tensor(labels)}
    metrics = task.measure(task.evaluation_step(logits, batch))
    assert metrics == pytest.approx({"loss": metrics["loss"], "accuracy": 2 / 3, "distance": 1 / 3})
    rows = {name: values.numpy() for name, values in task.predict(logits, batch).items()}
    measured = {"examples": 9, "metrics": metrics, "baselines": {}}
    assert write_results(folder, "r", "train", measured, rows, {"label": labels}, facts, 0.95, 10)["within_one"] == 1
    assert (folder / "train_plots.png").is_file()

    assert folder / "scripts" == SCRIPTS
    of_task = metrics_of_task(SCRIPTS / "snaketrain/tasks/text_classification.py", "TextClassification", "grade")
    assert of_task == {"loss": "min", "accuracy": "max", "distance": "min"}
    code = code_digests(SCRIPTS / "train_model.py", label_kind_file("grade"))
    assert {"snaketrain.labels.grade", "snaketrain.labels.one_class"} <= code.keys()
