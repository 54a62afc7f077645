"""The examples of docs/not_in_the_list.md run, and what the page says about them holds."""

import csv
import json
import runpy
import signal
from pathlib import Path

import pytest
import torch
import yaml
from distributed.running import interrupted, losses, run_stage, start, train
from distributed.test_own_tasks import prepared
from pipeline.test_readme import block
from pipeline.test_staleness import dry_run, jobs_in
from pipeline.workspace import REPOSITORY, configuration, make_workspace, snakemake
from safetensors.torch import load_file

from snaketrain.config.schema import Model
from snaketrain.runtime.journal import read_events

PAGE = "docs/not_in_the_list.md"
FILES = {"my_data.py": "python", "my_task.py": "python", "my_metrics.py": "python", "same_losses.py": "python", "my_config.yaml": "yaml"}
TEXT_TASK = """
import json
from pathlib import Path

from snaketrain import Task
from snaketrain.models.pretrained import describe_model, make_model


class Margin(Task):
    def build(self, model, folder, data):
        Path(__file__).with_name("facts.json").write_text(json.dumps([folder and str(folder), sorted(data)]))
        return {"model": make_model(model, folder, {"num_labels": 1}, {"vocab_size": data["vocab_size"]})}

    def describe(self, modules, folder):
        describe_model(modules["model"], folder)

    def outputs(self, modules, batch):
        return modules["model"](batch["input_ids"], batch["attention_mask"]).logits[:, 0]

    def training_step(self, modules, batch):
        return (1 - self.outputs(modules, batch) * (2 * batch["labels"] - 1)).relu().sum()

    def evaluation_step(self, scores, batch):
        return {"loss": (1 - scores * (2 * batch["labels"] - 1)).relu().sum(), "count": scores.new_tensor(len(scores))}

    def metric_inputs(self, metric, scores, batch):
        return scores, batch["labels"]

    def predict(self, scores, batch):
        return {"score": scores, "labelled": [str(label >= 0) for label in batch["labels"].tolist()]}
"""
UNLABELLED = """

class Unlabelled(Digits):
    def __getitem__(self, number):
        return super().__getitem__(number) | {"label": 0}
"""
WIDTH = """
from snaketrain.tasks.metrics import OfRows


class Width(OfRows):
    higher_is_better = True

    def compute(self, scores, labels):
        return float(scores[labels == 1].min() - scores[labels == 0].max())
"""


def write_files(folder: Path) -> Path:
    for name, language in FILES.items():
        (folder / name).write_text(block(PAGE, language, f"# {name}"))
    return folder


def facts_listed(row: str) -> set[str]:
    page = (REPOSITORY / PAGE).read_text(encoding="utf-8")
    (cell,) = [line.split("|")[2] for line in page.splitlines() if line.startswith(f"| {row} |")]
    return {name for name in cell.split("`")[1::2] if name.isidentifier()}


def same(one: Path, other: Path) -> bool:
    tensors, others = load_file(one), load_file(other)
    return tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in tensors)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = write_files(tmp_path_factory.mktemp("finished"))
    for name in ("Snakefile", "workflow"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "config").mkdir()
    config = yaml.safe_load((folder / "my_config.yaml").read_text())
    new = {"use": "my_data.py:Unlabelled", "arguments": {"first": 1500, "last": 1510}}
    config["runs"]["student"] |= {"evaluation_sets.new": new}
    config["runs"]["two"] = config["runs"]["two"] | {"evaluate.metrics.later": {"use": "later.py:Median"}}
    (folder / "later.py").write_text((folder / "my_metrics.py").read_text())
    (folder / "config/config.yaml").write_text(yaml.safe_dump(config))
    with open(folder / "my_data.py", "a") as file:
        file.write(UNLABELLED)
    snakemake(folder)
    return folder


def results(folder: Path, run: str) -> dict:
    return json.loads((folder / f"results/runs/{run}/evaluation/test_results.json").read_text())


def test_a_teacher_is_neither_trained_nor_forgotten(finished):
    teacher = finished / "results/runs/teacher/selection/model/model.safetensors"
    held = list((finished / "results/runs/student").rglob("teacher.safetensors"))
    assert {path.parent.name for path in held} >= {"model", "step-00000225"}
    assert all(same(path, teacher) for path in held)
    assert results(finished, "student")["accuracy"] > 0.6


def test_results_are_those_of_a_classification(finished):
    student, teacher = (results(finished, run) for run in ("student", "teacher"))
    assert student["interval"][0] < student["accuracy"] < student["interval"][1] and student["baselines"]["majority"]
    assert student["examples_digest"] == teacher["examples_digest"], "they are compared"
    with open(finished / "results/runs/student/evaluation/test_predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    of_label = torch.tensor([float(row[f"p_{row['label']}"]) for row in rows])
    assert student["metrics"]["median"] == pytest.approx(float(of_label.median()), abs=1e-5)


def test_items_without_a_label_are_predicted_as_an_evaluation_set(finished):
    with open(finished / "results/runs/student/sets/new/new_predictions.csv", newline="") as file:
        new = list(csv.DictReader(file))
    with open(finished / "results/runs/student/evaluation/test_predictions.csv", newline="") as file:
        labelled = list(csv.DictReader(file))[:10]
    assert [row["p_3"] for row in new] == [row["p_3"] for row in labelled]


def test_two_processes_have_the_losses_of_one(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(finished)
    runpy.run_path("same_losses.py")
    lines = [json.loads(line) for line in (finished / "results/runs/two/training/journal.jsonl").read_text().splitlines()]
    next(line for line in lines if line["event"] == "train")["metrics"]["loss"] *= 1.001
    changed = tmp_path / "results/runs/two/training"
    changed.mkdir(parents=True)
    (changed / "journal.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "results/runs/student").symlink_to(finished / "results/runs/student")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        runpy.run_path(str(finished / "same_losses.py"))


def test_an_edit_repeats_what_the_page_says(finished):
    edit(finished / "my_task.py", "torch.no_grad():", "torch.no_grad():  # a comment")
    assert jobs_in(dry_run(finished)) == set()
    edit(finished / "later.py", "median()", "mean()")
    assert jobs_in(dry_run(finished)) == {"evaluate_model two", "compare_runs"}
    edit(finished / "my_metrics.py", "median()", "mean()")
    assert "train_model student" in jobs_in(dry_run(finished))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_training_with_a_teacher_resumes(tmp_path):
    write_files(tmp_path)
    (tmp_path / "data").mkdir()
    data = prepared(tmp_path / "data", use=f"{tmp_path}/my_data.py:Digits", arguments={"first": 0, "last": 400, "sevens": 3})
    given = yaml.safe_load((tmp_path / "my_config.yaml").read_text())["train"]["task"]["arguments"]
    settings = {"task": {"use": f"{tmp_path}/my_task.py:Distil", "arguments": given}, "epochs": 10, "evaluations_per_epoch": 1}
    settings["model"] = Model(use=f"{tmp_path}/my_task.py:net", arguments={"width": 16})
    train(data, tmp_path / "whole", **settings)
    pids = start(data, tmp_path / "parts", **settings)
    assert interrupted(pids, signal.SIGTERM, lambda: len(losses(tmp_path / "parts")) >= 25) == [75]
    train(data, tmp_path / "parts", **settings)
    assert len([line for line in read_events(tmp_path / "parts/journal.jsonl")[0] if line["event"] == "attempt"]) == 2
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    sharded = train(data, tmp_path / "sharded", 2, strategy="fsdp", **settings)
    assert sharded == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    held = [path for name in ("whole", "parts") for path in (tmp_path / name).rglob("teacher.safetensors")]
    assert len(held) >= 2 and all(same(path, held[0]) for path in held)
    facts = json.loads((tmp_path / "data/manifest.json").read_text())["facts"]
    assert facts_listed("`data` of a dataset class") == set(facts)


def test_a_task_of_ones_own_predicts_files_of_text(tmp_path, monkeypatch):
    (tmp_path / "my_text_task.py").write_text(TEXT_TASK)
    (tmp_path / "new.csv").write_text("text\na good film\na bad film\n")
    train_section = configuration()["train"] | {"task": {"use": "my_text_task.py:Margin"}, "epochs": 6, "learning_rate": 3e-3}
    (tmp_path / "my_metrics.py").write_text(WIDTH)
    train_section["metrics"] = {"width": {"use": "my_metrics.py:Width"}}
    make_workspace(tmp_path, train=train_section, select={"metric": "width"}, predict={"new": {"path": "new.csv"}}, runs={"small": {}})
    snakemake(tmp_path)
    with open(tmp_path / "results/runs/small/predictions/new.csv", newline="") as file:
        good, bad = csv.DictReader(file)
    assert float(good["score"]) > float(bad["score"]) and good["labelled"] == "False"
    assert json.loads((tmp_path / "facts.json").read_text()) == [None, sorted(facts_listed("`data` of texts"))]
    monkeypatch.chdir(tmp_path)
    words = ["--model", "results/runs/small/selection/model", "--input", "new.csv", "--output", "by_hand"]
    run_stage("predict", words, tmp_path / "log")
    with open(tmp_path / "by_hand.csv", newline="") as file:
        assert [float(row["score"]) for row in csv.DictReader(file)] == pytest.approx([float(good["score"]), float(bad["score"])], rel=1e-5)
    assert json.loads((tmp_path / "facts.json").read_text())[0] == "results/runs/small/selection/model"
    assert json.loads((tmp_path / "results/runs/small/selection/model/config.json").read_text())["architectures"]
