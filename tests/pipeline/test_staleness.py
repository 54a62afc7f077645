"""The documentation's table of edits, row by row: a finished workspace is edited, and Snakemake reports what it would run."""

import json
import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY, keep_code_of_a_copy, snakemake
from snaketrain.orchestration.submissions import Submission, Submissions
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import read_manifest, write_checked
from snaketrain.runtime.stages import MADE_AGAIN_WITH, settings_words
from snaketrain.tracking.mlflow_store import Store

TRAINS = {"train_model", "select_checkpoint", "evaluate_model"}
BOTH = ("small", "other")


@pytest.fixture
def finished(workspace, tmp_path):
    """A copy of a finished workspace with a copy of the code, to be edited."""
    folder = tmp_path / "project"
    shutil.copytree(workspace, folder, symlinks=True)
    for name in ("Snakefile", "workflow", "profiles"):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    keep_code_of_a_copy(folder, folder)
    return folder


def planned(folder: Path, *arguments: str) -> set[str]:
    """`rule` or `rule run` for everything that Snakemake would run."""
    return jobs_in(dry_run(folder, *arguments))


def jobs_in(printed: str) -> set[str]:
    jobs = set()
    for block in re.split(r"\n(?=(?:local)?rule )", printed):
        if match := re.match(r"(?:local)?rule (\w+):", block):
            run = re.search(r"wildcards: run=([^\s,]+)", block)
            jobs.add(f"{match[1]} {run[1]}" if run else match[1])
    return jobs - {"all"}


def dry_run(folder: Path, *arguments: str) -> str:
    done = snakemake(folder, "--dry-run", *arguments, snakefile=folder / "Snakefile")
    return done.stdout + done.stderr


def of(rules: set[str], *runs: str) -> set[str]:
    return {f"{rule} {run}" for rule in rules for run in runs} | {"compare_runs"}


def configure(folder: Path, **changes) -> None:
    """Set dotted settings in the workspace's configuration; None removes."""
    path = folder / "config/config.yaml"
    config = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        place = config
        *parents, last = key.split("__")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    path.write_text(yaml.safe_dump(config, sort_keys=False))


def edit(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / "workflow/scripts" / file
    text = path.read_text()
    assert text.count(old) >= 1, f"{file} no longer holds {old!r}"
    path.write_text(text.replace(old, new, 1))


def test_a_finished_workflow_has_nothing_to_do(finished):
    printed = dry_run(finished)
    assert jobs_in(printed) == set()
    assert "not present in the Snakefile" not in printed  # a local rule that is only there where it is needed


def test_layout_comments_and_order_rerun_nothing(finished):
    edit(finished, "snaketrain/training/step.py", "def train_step(", "# a remark\n\n\ndef train_step(")
    edit(finished, "snaketrain/training/step.py", '"""One step of each optimizer', '"""Reworded. One step of each optimizer')
    edit(finished, "train_model.py", '"""Train one run', '"""Reworded. Train one run')
    path = finished / "config/config.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text("# turned around\n" + yaml.safe_dump(dict(reversed(config.items())), sort_keys=True))
    assert planned(finished) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {
            "tracking__notes": "tried at night",
            "tracking__log_every_steps": 3,
            "tracking__uri": "sqlite:///elsewhere.db",
            "compute__threads": 3,
            "compute__processes": 2,
            "compute__keep_checkpoints": 5,
            "compute__evaluation": {"processes": 2, "threads": 1},
        },
        {"compute__evaluation": {"in_training_job": True}},
    ],
    ids=["many", "in the training job"],
)
def test_compute_and_tracking_rerun_nothing(finished, changes):
    configure(finished, **changes)
    assert planned(finished) == set()


def test_another_spelling_of_the_same_path_reruns_nothing(finished):
    path = yaml.safe_load((finished / "config/config.yaml").read_text())["data"]["train"]["path"]
    configure(finished, data__train__path=f"{finished}/config/../{path}", data__tokenizer__path="./tokenizer")
    assert planned(finished) == set()


def test_evaluate_reruns_evaluation(finished):
    configure(finished, evaluate__bins=5)
    assert planned(finished) == of({"evaluate_model"}, *BOTH)


def test_metric_code_reruns_evaluation(finished):
    edit(finished, "snaketrain/labels/one_class.py", "float(right.mean())", "1 - float(right.mean())")  # of the report
    assert planned(finished) == of({"evaluate_model"}, *BOTH)


def test_select_reruns_the_selection_and_later_stages(finished):
    configure(finished, select__metric="loss")
    assert planned(finished) == of({"select_checkpoint", "evaluate_model"}, *BOTH)


def test_a_metric_that_was_not_logged_trains_again_where_it_selects_and_only_evaluates_where_it_does_not(finished):
    configure(finished, select__metric="matthews_correlation")
    assert planned(finished) == of(TRAINS, *BOTH)
    configure(finished, select__metric="accuracy", evaluate__metrics=["matthews_correlation"])
    assert planned(finished) == of({"evaluate_model"}, *BOTH)


def test_train_of_one_run_reruns_that_run(finished):
    configure(finished, runs__small={"train.learning_rate": 0.002})
    assert planned(finished) == of(TRAINS, "small")


def test_model_reruns_training(finished):
    configure(finished, model__arguments__hidden_size=48)
    assert planned(finished) == of(TRAINS, *BOTH)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("snaketrain/training/evaluation.py", "module.eval()", "module.train()"),
        ("snaketrain/tasks/text_classification.py", ".sum()", ".mean()"),
        ("snaketrain/labels/one_class.py", "logits.argmax(-1)", "logits.argmin(-1)"),
        ("snaketrain/training/schedules.py", "return 1.0 - done / steps", "return 1.0 - (done / steps) ** 2"),
    ],
)
def test_trainer_code_reruns_training(finished, file, old, new):
    edit(finished, file, old, new)
    assert planned(finished) >= {"train_model small", "train_model other"}
    assert "prepare_data" not in planned(finished)


def test_code_that_computes_with_settings_reruns_what_they_decide(finished):
    edit(finished, "snaketrain/config/schema/train.py", "round(self.warmup", "int(self.warmup")
    assert planned(finished) >= {"train_model small", "train_model other"} and "fetch_data" not in planned(finished)


def test_data_settings_rerun_the_preparation_and_all_later_stages(finished):
    configure(finished, data__max_length=9)
    assert planned(finished) == of(TRAINS, *BOTH) | {"fetch_data", "prepare_data"}


def test_a_raw_file_reruns_the_preparation_and_all_later_stages(finished):
    raw = finished / yaml.safe_load((finished / "config/config.yaml").read_text())["data"]["train"]["path"]
    raw.write_text(raw.read_text() + raw.read_text().splitlines()[-1] + "\n")
    assert planned(finished) == of(TRAINS, *BOTH) | {"fetch_data", "prepare_data"}


def test_another_layout_of_a_tokenizer_reruns_nothing_and_another_token_all(finished):
    file = finished / "tokenizer/tokenizer.json"
    tokenizer = json.loads(file.read_text())
    file.write_text(json.dumps(tokenizer, indent=1) + "\n")
    assert planned(finished) == set()
    tokenizer["model"]["vocab"]["another"] = len(tokenizer["model"]["vocab"])
    file.write_text(json.dumps(tokenizer))
    assert planned(finished) == of(TRAINS, *BOTH) | {"fetch_model", "prepare_data"}


def test_touched_raw_file_reruns_nothing(finished):
    (finished / yaml.safe_load((finished / "config/config.yaml").read_text())["data"]["train"]["path"]).touch()
    assert planned(finished) == set()


def test_a_changed_raw_file_is_detected_with_any_modification_time(finished):
    raw = finished / yaml.safe_load((finished / "config/config.yaml").read_text())["data"]["train"]["path"]
    raw.write_text(raw.read_text() + raw.read_text().splitlines()[-1] + "\n")
    os.utime(raw, (1e9, 1e9))
    assert planned(finished) == of(TRAINS, *BOTH) | {"fetch_data", "prepare_data"}


def test_deleted_and_changed_results_of_a_run_are_restored(finished):
    (finished / "results/runs/small/evaluation/test_results.json").unlink()
    flip(finished / "results/runs/other/selection/model/model.safetensors")
    before = files(finished)
    printed = dry_run(finished)
    assert jobs_in(printed) == of({"evaluate_model"}, *BOTH) | {"select_checkpoint other"}
    assert "small/evaluation/test_results.json: is missing. evaluate_model runs again." in printed
    assert "other/selection/model/model.safetensors: is not what was written. select_checkpoint runs again." in printed
    assert files(finished) == before, "a dry run changes nothing"


def test_results_written_while_no_workflow_ran_are_checked_by_their_manifest(finished):
    """Snakemake was killed, so it has no record of the result, or one of an earlier result."""
    shutil.rmtree(finished / ".snakemake/metadata")
    manifest = "results/runs/small/training/manifest.json"
    submission = Submission("4", "rule_train_model_wildcards_small", "", "4.log", {manifest: None})
    Submissions(finished).submitted(submission)
    assert planned(finished) == set()
    configure(finished, runs__small={"train.learning_rate": 3e-3})
    printed = dry_run(finished)
    assert jobs_in(printed) == of(TRAINS, "small")
    assert (
        f"{manifest}: was written while no workflow ran, or put there, with other settings, code or inputs than now. train_model runs again."
        in printed
    )


def test_an_earlier_result_that_was_put_back_runs_again(finished):
    """It is intact, and Snakemake believes that it was made with the settings that it has recorded."""
    training = finished / "results/runs/small/training"
    shutil.copytree(training, finished / "copy")
    assert planned(finished) == set()
    configure(finished, runs__small={"train.learning_rate": 3e-3})
    snakemake(finished, snakefile=finished / "Snakefile")
    assert planned(finished) == set()
    shutil.rmtree(training)
    shutil.copytree(finished / "copy", training)
    printed = dry_run(finished)
    assert jobs_in(printed) == of(TRAINS, "small")
    assert "training/manifest.json: was written while no workflow ran, or put there, with other settings" in printed


def test_deleted_runs_are_restored_but_not_for_unneeded_checkpoints(finished):
    shutil.rmtree(finished / "results/runs/small")
    shutil.rmtree(finished / "results/runs/other/training/checkpoints")
    assert planned(finished) == of(TRAINS, "small")


def test_deleted_data_is_restored_without_retraining(finished):
    (prepared,) = finished.glob("results/data/*/train.arrow")
    content, manifest = prepared.read_bytes(), prepared.with_name("manifest.json").read_bytes()
    prepared.unlink()
    assert "\n1 job: prepare_data 1\n" in snakemake(finished, snakefile=finished / "Snakefile").stderr
    assert (prepared.read_bytes(), prepared.with_name("manifest.json").read_bytes()) == (content, manifest)
    assert planned(finished) == set()


def test_deleted_data_hides_no_other_change(finished):
    """Snakemake does not check the stages that depend on one that runs: they all run."""
    next(finished.glob("results/data/*/train.arrow")).unlink()
    configure(finished, runs__small={"train.seed": 7})
    assert planned(finished) == of(TRAINS, *BOTH) | {"prepare_data"}


@pytest.mark.parametrize(
    ("stage", "file", "maker", "inputs"),
    [
        ("train_model", "{data}/train.arrow", "prepare_data", {"data": "{data}"}),
        ("select_checkpoint", "{run}/training/checkpoints/*/model.safetensors", "train_model", {"training": "{run}/training", "data": "{data}"}),
        (
            "evaluate_model",
            "{run}/selection/model/model.safetensors",
            "select_checkpoint",
            {"training": "{run}/training", "selection": "{run}/selection", "data": "{data}"},
        ),
    ],
)  # fmt: skip
def test_a_stage_verifies_what_it_reads(finished, stage, file, maker, inputs):
    """The file was changed after Snakemake had planned the job."""
    (data,) = finished.glob("results/data/*")
    places = {"run": "results/runs/small", "data": data.relative_to(finished)}
    for path in finished.glob(file.format(**places)):
        flip(path)
    manifests = [word for role, folder in inputs.items() for word in (f"--{role}", f"{folder.format(**places)}/manifest.json")]
    settings = json.loads((finished / "results/runs/small/training/run.json").read_text())["settings"]
    given = settings_words(finished / "out", stage, settings | {"select": {"metric": "accuracy"}, "evaluate": {"bins": 10}})
    name = [] if stage == "select_checkpoint" else ["--run-name", "small"]
    command = [warm_python(), finished / f"workflow/scripts/{stage}.py", "--output", "out/manifest.json", *manifests, *name]
    done = subprocess.run([*command, *given], cwd=finished, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "is not what was written" in last and maker in last
    assert not (finished / "out/manifest.json").exists()


def flip(path: Path) -> None:
    """Change one byte in the middle."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def files(folder: Path) -> dict[str, int]:
    """All results, except cached digests and settings files of jobs."""
    found = [path for pattern in ("results/**/*", ".snakemake/snaketrain-settings/**/*") for path in folder.glob(pattern)]
    return {str(path): path.stat().st_mtime_ns for path in found if path.is_file() and path.name[0] != "."}


def test_a_sweep_point_runs_that_point_only(finished):
    configure(finished, sweeps={"seeds": {"train.seed": [5]}})
    assert planned(finished) == of(TRAINS, "seeds-seed=5")


def test_a_run_with_more_settings_than_the_others_runs_that_run_only(finished):
    configure(finished, runs__wide={"model.arguments.layer_norm_eps": 1e-6})
    assert planned(finished) == of(TRAINS, "wide")


def test_swapped_values_are_noticed(finished):
    """Snakemake itself compares values without their names: 16 and 42 swapped would be the same set."""
    train = json.loads((finished / "results/runs/small/training/run.json").read_text())["settings"]["train"]
    assert (train["batch_size"], train["seed"]) == (16, 42)
    configure(finished, train__batch_size=42, train__seed=16)
    assert planned(finished) >= {"train_model small", "train_model other"}


def test_dry_run_shows_old_and_new_value(finished):
    configure(finished, runs__small={"train.learning_rate": 0.002})
    printed = dry_run(finished)
    changes = [line.strip() for line in printed.splitlines() if " -> " in line]
    assert changes == ["train.learning_rate: 0.001 -> 0.002"], printed


def test_settings_from_the_command_line(finished):
    assert planned(finished, "--config", "train={seed: 7}") >= {"train_model small"}


def test_a_users_own_task_makes_its_stages_stale(finished):
    (finished / "my_task.py").write_text(
        "from snaketrain.tasks.text_classification import TextClassification\n\n\n"
        "class MyTask(TextClassification):\n    metrics = {'loss': 'min', 'accuracy': 'max', 'errors': 'min'}\n\n"
        "    def measure(self, sums):\n        found = super().measure(sums)\n        return found | {'errors': 1 - found['accuracy']}\n"
    )
    configure(finished, train__task={"use": "my_task.py:MyTask"}, train__epochs=1, select__metric="errors")
    configure(finished, runs={"small": {}})
    snakemake(finished, snakefile=finished / "Snakefile")
    assert '"errors"' in (finished / "results/runs/small/training/journal.jsonl").read_text()
    assert planned(finished) == set()
    (finished / "my_task.py").write_text((finished / "my_task.py").read_text().replace("1 - found", "1.0 - found") + "\n# a remark\n")
    assert planned(finished) == of(TRAINS, "small")


def test_what_own_code_loads_and_reads_makes_its_stages_stale(finished, monkeypatch):
    """Each is only known after the stage has run."""
    own = {
        "mine/my_task.py": "import importlib, os\nfrom pathlib import Path\nfrom mylib.utils import size\n"
        "from snaketrain.tasks.text_classification import TextClassification\n\n\nclass MyTask(TextClassification):\n"
        "    hidden = importlib.import_module('.found', __package__)\n\n    def __init__(self, *given, **named):\n"
        "        super().__init__(*given, **named)\n        self.words = Path('mine/words.txt').read_text(), os.environ.get('MY_SIZE'), size()\n",
        "mine/mylib/__init__.py": "",
        "mine/mylib/utils.py": "def size():\n    return 1\n",
        "mine/found.py": "X = 1\n",
        "mine/words.txt": "good",
    }
    for name, text in own.items():
        (finished / name).parent.mkdir(parents=True, exist_ok=True)
        (finished / name).write_text(text)
    configure(finished, train__task={"use": "mine/my_task.py:MyTask"}, train__epochs=1, runs={"small": {}})
    snakemake(finished, snakefile=finished / "Snakefile")
    assert planned(finished) == set()
    training = finished / "results/runs/small/training"
    assert set(own) | {"$MY_SIZE"} == set(json.loads((training / "manifest.json").read_text())["loaded"])
    with (finished / "mine/found.py").open("a") as file:
        file.write("# a remark\n")
    assert planned(finished) == set()
    for name, text in {"mine/mylib/utils.py": "def size():\n    return 2\n", "mine/found.py": "X = 2\n", "mine/words.txt": "bad"}.items():
        (finished / name).write_text(text)
        printed = dry_run(finished)
        assert jobs_in(printed) == of(TRAINS, "small")
        assert f"{name} has changed since train_model/small ran. train_model runs again." in printed
        (finished / name).write_text(own[name])
    for same in ("./mine/my_task.py:MyTask", f"{finished}/mine/my_task.py:MyTask"):
        configure(finished, train__task={"use": same})
        assert planned(finished) == set(), same
    with monkeypatch.context() as patch:
        patch.setenv("MY_SIZE", "3")
        assert "$MY_SIZE is new since train_model/small ran" in dry_run(finished)
    (finished / "mine/words.txt").write_text("bad")
    journal = (training / "journal.jsonl").stat().st_ino
    snakemake(finished, snakefile=finished / "Snakefile")
    assert (training / "journal.jsonl").stat().st_ino != journal, "the training began anew"
    assert planned(finished) == set()


def test_the_same_selection_is_not_scored_again(finished):
    """If another metric selects the same checkpoint, its predictions are reused; those of other weights and settings are removed."""
    configure(finished, evaluate__bins=4)
    scores = {path: path.stat().st_mtime_ns for path in finished.glob("results/runs/*/evaluation/scores/*/*.npz")}
    assert len(scores) == 4
    (finished / "results/runs/small/evaluation/scores/of-other-weights").mkdir()
    (finished / "results/runs/small/evaluation/scores/of-other-weights/dev.npz").touch()
    snakemake(finished, snakefile=finished / "Snakefile")
    assert {path: path.stat().st_mtime_ns for path in finished.glob("results/runs/*/evaluation/scores/*/*.npz")} == scores


def test_another_cadence_trains_no_step_again(finished):
    """MLflow also has the curves of the whole training."""
    pytest.importorskip("snaketrain.extras.shared_steps")
    configure(finished, train__evaluations_per_epoch=4)
    done = snakemake(finished, snakefile=finished / "Snakefile")
    assert "Traceback" not in done.stderr
    store = Store(f"sqlite:///{finished}/mlflow.db")
    for name in BOTH:
        training = finished / f"results/runs/{name}/training"
        events = read_events(training / "journal.jsonl")[0]
        (attempt,) = [event for event in events if event["event"] == "attempt"]
        steps = [event["step"] for event in events if event["event"] == "train"]
        assert attempt["resume_step"] == attempt["steps"] == json.loads((training / "manifest.json").read_text())["facts"]["steps"]
        assert f"took over {attempt['steps']} of {attempt['steps']} steps" in (training / "logs/rank-0.log").read_text()
        runs = store.client.search_runs(
            [store.experiment("words")], f"attributes.run_name = '{name}'", order_by=["attributes.start_time DESC"]
        )
        assert [point.step for point in store.client.get_metric_history(runs[0].info.run_id, "train/loss")] == steps != []
        assert runs[0].info.status == "FINISHED" and "test/accuracy" in runs[0].data.metrics
    assert planned(finished) == set()


def test_other_versions_of_packages_are_told_and_rerun_only_where_that_is_asked(finished):
    training, asked = finished / "results/runs/small/training", ("--config", "compute={rerun_on_upgrade: true}")
    recorded = read_manifest(training / "manifest.json").versions
    assert recorded["torch"] == metadata.version("torch") and "numpy" in recorded
    write_checked(training / MADE_AGAIN_WITH, {"versions": recorded | {"torch": "1.0"}})
    printed = dry_run(finished)
    told = f"note: 1 finished result was made with torch 1.0 (now {recorded['torch']}). Nothing reruns for that; "
    assert jobs_in(printed) == set() and told in printed
    assert of(TRAINS, "small") <= planned(finished, *asked)
    snakemake(finished, *asked, snakefile=finished / "Snakefile")
    assert len(list((training.parent / "superseded").iterdir())) == 1
    assert "made with" not in dry_run(finished, *asked) and planned(finished, *asked) == set()
