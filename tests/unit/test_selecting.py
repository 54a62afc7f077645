"""The checkpoint is selected by the metrics in the checkpoints, even if the journal has lost evaluations."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import select_checkpoint
from select_checkpoint import rank_checkpoints
from snaketrain.config.schema import Select, Train
from snaketrain.evaluation.journals import curves
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.runtime import manifests
from snaketrain.runtime.manifests import Manifest, content_digest, digests, file_digest, read_manifest, write_manifest
from snaketrain.runtime.stages import JobSettings

KEPT = {8: 0.70, 12: 0.75}


def evaluation(step: int, accuracy: float, attempt: int = 1) -> dict:
    return {"event": "eval", "step": step, "metrics": {"accuracy": accuracy}, "time": 100.0 * attempt + step, "attempt": attempt}


def checkpoint(step: int, attempt: int = 1) -> dict:
    path = f"checkpoints/step-{step:08d}"
    return {"event": "checkpoint", "step": step, "path": path, "time": 100.0 * attempt + step, "attempt": attempt}


def attempt(number: int, resume_step: int) -> dict:
    return {"event": "attempt", "resume_step": resume_step, "time": 100.0 * number, "attempt": number}


# killed after the evaluation of step 8 and before its checkpoint, which the second attempt made; step 4 is not kept any more
JOURNAL = [
    attempt(1, 0), evaluation(4, 0.72), checkpoint(4), evaluation(8, 0.90),
    attempt(2, 4), checkpoint(4, 2), evaluation(8, 0.70, 2), checkpoint(8, 2), evaluation(12, 0.75, 2), checkpoint(12, 2),
]  # fmt: skip


@pytest.fixture
def training(tmp_path) -> Path:
    write(tmp_path, map(json.dumps, JOURNAL))
    for step, accuracy in KEPT.items():
        folder = tmp_path / f"checkpoints/step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"step": step, "metrics": {"accuracy": accuracy}, "scaler": {}}))
    return tmp_path


def write(training: Path, lines) -> None:
    (training / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))


def ranked(training: Path, mode: str = "max") -> list[tuple[int, float, bool]]:
    return [(entry["step"], entry["value"], entry["kept"]) for entry in rank_checkpoints(training, "accuracy", mode)]


def test_an_evaluation_whose_checkpoint_was_lost_does_not_count(training):
    assert ranked(training) == [(12, 0.75, True), (4, 0.72, False), (8, 0.70, True)]
    assert ranked(training, "min") == [(8, 0.70, True), (4, 0.72, False), (12, 0.75, True)]


@pytest.mark.parametrize("number", [number for number, line in enumerate(JOURNAL) if line["event"] == "eval"])
@pytest.mark.parametrize("damage", [lambda line: line[: len(line) // 2], lambda line: '{"event": "eval"}', lambda line: "\0" * 80])
def test_a_truncated_line_changes_no_winner(training, number, damage):
    lines = [json.dumps(line) for line in JOURNAL]
    write(training, [*lines[:number], damage(lines[number]), *lines[number + 1 :]])
    assert [entry for entry in ranked(training) if entry[2]] == [(12, 0.75, True), (8, 0.70, True)]
    assert not {(8, 0.90, True), (8, 0.90, False)} & set(ranked(training))


def test_an_unreadable_checkpoint_is_reported(training):
    (training / "checkpoints/step-00000012/state.json").write_text('{"step": 12, "metr')
    with pytest.raises(SystemExit, match=r"step-00000012/state.json: cannot be read .* Delete this checkpoint, and train the run again"):
        ranked(training)


def test_a_checkpoint_without_an_evaluation_is_not_ranked(training):
    (training / "checkpoints/step-00000012/state.json").write_text('{"step": 12, "metrics": null, "scaler": {}}')
    assert (12, 0.75, True) not in ranked(training)


def test_curves_contain_the_evaluations_of_the_last_attempt():
    assert curves(JOURNAL)["eval/accuracy"] == [(4, 0.72), (8, 0.70), (12, 0.75)]
    lines = [*JOURNAL[:4], *JOURNAL[4:6]]  # killed again before step 8: the metrics of its weights are unknown
    assert curves(lines)["eval/accuracy"] == [(4, 0.72)]


@pytest.fixture
def finished(training) -> dict[str, Path]:
    """The manifests of a finished training, with weights in its checkpoints, and of its data."""
    (training / "description").mkdir()
    (training / "description/config.json").write_text("{}")
    for step in KEPT:
        (training / f"checkpoints/step-{step:08d}/model.safetensors").write_bytes(bytes([step]) * 1000)
        (training / f"checkpoints/step-{step:08d}/task.memory.pt").touch()
    data = training / "data"
    (data / "tokenizer").mkdir(parents=True)
    (data / "tokenizer/tokenizer.json").write_text("{}")
    trained = {"run": "small", "metrics": {"accuracy": "max"}, "precision": "fp32"}
    for folder, stage, given, facts in (
        (training, "train_model", {"train": Train().as_json}, trained),
        (data, "prepare_data", {"data": {}}, {}),
    ):
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".json", ".safetensors", ".pt")]
        names = [name for name in names if not name.startswith("data/")]
        write_manifest(folder / "manifest.json", Manifest(stage, "1", given, {}, digests(folder, names), facts))
    return {"training": training / "manifest.json", "data": data / "manifest.json"}


def test_no_checkpoint_is_read_for_its_digest_where_the_selection_runs(finished, tmp_path, monkeypatch):
    """On a login node, under SLURM: the copy gets the digest of its source."""
    read = []
    monkeypatch.setattr(manifests, "content_digest", lambda path: read.append(Path(path).name) or content_digest(path))
    given = JobSettings("select_checkpoint", {"select": {"metric": "accuracy", "mode": None}}, {})
    select_checkpoint.main(Namespace(output=tmp_path / "selection/manifest.json", settings=given, model=None, **finished))
    made = read_manifest(tmp_path / "selection/manifest.json")
    assert made.facts["step"] == 12 and sorted(read) == ["config.json", "selection.json", "snaketrain.json", "tokenizer.json"]
    assert made.files["model/model.safetensors"] == file_digest(tmp_path / "selection/model/model.safetensors")
    assert manifests.damage(made) == {}
    (tmp_path / "selection/model/model.safetensors").write_bytes(b"x" * 1000)
    assert manifests.damage(made) == {"model/model.safetensors": manifests.CHANGED}


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        (0.9, "warning: small: step 12 has the highest dev accuracy (0.7500) of 2 evaluated checkpoints that are still there; step 4 (0.9000) was"),
        (0.75, "\nsmall: step 12 has the highest dev accuracy (0.7500) of 2 evaluated checkpoints that are still there\n"),
        (0.72, "\nsmall: step 12 has the highest dev accuracy (0.7500) of 3 evaluated checkpoints\n"),
    ],
)  # fmt: skip
def test_a_better_checkpoint_that_is_not_kept_is_a_warning(finished, tmp_path, monkeypatch, capsys, removed, said):
    """Which the console repeats. Checkpoints may have been kept by another metric than the one that selects."""
    lines = [evaluation(4, removed), checkpoint(4), evaluation(8, 0.70), checkpoint(8), evaluation(12, 0.75), checkpoint(12)]
    write(finished["training"].parent, map(json.dumps, lines))
    given = JobSettings("select_checkpoint", {"select": {"metric": "accuracy", "mode": None}}, {})
    select_checkpoint.main(Namespace(output=tmp_path / "selection/manifest.json", settings=given, model=None, **finished))
    assert said in f"\n{capsys.readouterr().out}"


def test_selecting_loads_nothing_large():
    loaded = "import select_checkpoint, sys; print({'torch', 'numpy', 'pandas', 'transformers'} & set(sys.modules))"
    scripts = Path(select_checkpoint.__file__).parent
    assert subprocess.run([sys.executable, "-c", loaded], cwd=scripts, capture_output=True, text=True).stdout == "set()\n"


def test_several_checkpoints_are_averaged_where_that_is_asked_for(finished, tmp_path, monkeypatch):
    chosen = []
    monkeypatch.setattr(select_checkpoint, "export", lambda checkpoints, *_: chosen.extend(path.name for path in checkpoints))
    given = JobSettings("select_checkpoint", {"select": {"metric": "accuracy", "mode": None, "average": 2}}, {})
    monkeypatch.setattr(select_checkpoint, "weights_of", lambda *_, **__: "")
    (tmp_path / "selection/model").mkdir(parents=True)
    select_checkpoint.main(Namespace(output=tmp_path / "selection/manifest.json", settings=given, model=None, **finished))
    assert chosen == ["step-00000012", "step-00000008"]
    assert json.loads((tmp_path / "selection/selection.json").read_text())["averaged"] == [12, 8]


def test_a_step_can_be_named(finished, tmp_path, capsys):
    def select(step: int) -> int:
        given = JobSettings("select_checkpoint", {"select": {"metric": "accuracy", "mode": None, "step": step}}, {})
        select_checkpoint.main(Namespace(output=tmp_path / "selection/manifest.json", settings=given, model=None, **finished))
        return read_manifest(tmp_path / "selection/manifest.json").facts["step"]

    assert select(8) == 8
    assert (
        "small: select.step names step 8, whose dev accuracy is 0.7000; the best of 3 evaluated checkpoints is that of step 12\n"
        in capsys.readouterr().out
    )
    assert file_digest(tmp_path / "selection/model/model.safetensors") == file_digest(
        finished["training"].parent / "checkpoints/step-00000008/model.safetensors"
    )
    with pytest.raises(SystemExit, match=r"select.step: small has no checkpoint of step 4 with an evaluation. It has those of 8, 12."):
        select(4)


def test_a_step_and_an_average_exclude_each_other():
    with pytest.raises(ValueError, match="`step` names one checkpoint, and `average` asks for several"):
        Select(step=8, average=2)


def test_which_checkpoint_is_taken_trains_nothing_again():
    """Even where the selection metric ends the training."""
    config = {"data": {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}, "train": {"early_stopping": {"patience": 2}}}
    taken = [{}, {"step": 8}, {"average": 2}, {"metric": "macro_f1"}]
    pipelines = [Pipeline(config | {"select": select}, reads_files=False) for select in taken]
    as_is, step, average, metric = (pipeline.stages["train_model"].settings("default") for pipeline in pipelines)
    assert as_is == step == average != metric
