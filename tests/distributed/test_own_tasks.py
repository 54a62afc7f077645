"""Tasks from the configuration and custom ones: the same losses on any number of processes, and everything that a task may override."""

import json
import re
import signal
from pathlib import Path

import pytest
import torch
from distributed import forking
from distributed.running import REPOSITORY, interrupted, log_of, losses, run_stage, start, train
from safetensors.numpy import load_file

from snaketrain.config.schema import Data, Model
from snaketrain.data.preparing import prepare_items
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import Manifest, write_manifest
from snaketrain.runtime.stages import settings_words
from snaketrain.runtime.strict_json import with_checksum

EXAMPLES = REPOSITORY / "config/examples"
CNN = Model(use=f"{EXAMPLES}/digits.py:SmallCnn", arguments={"channels": 4})
ACCURACY = {"use": "torchmetrics.classification.MulticlassAccuracy", "arguments": {"num_classes": 10, "average": "macro"}}
DIGITS = {"use": "module", "arguments": {"losses": {"output": "torch.nn.CrossEntropyLoss"}, "metrics": {"accuracy": ACCURACY}}}
AVERAGING = """
import torch  # noqa: E402
import torch.distributed
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from snaketrain.tasks.module import Module


class Averaging(Module):
    wraps = False

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.average, self.steps_taken, self.ended, self.workers = {}, 0, [], 0

    def build(self, model, folder, data):
        (module,) = super().build(model, folder, data).values()
        several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        return {"model": DistributedDataParallel(module) if several else module}

    def on_worker_start(self):
        self.workers += 1

    def on_epoch_start(self, epoch, modules):
        assert self.workers == 1
        self.model = modules["model"]
        if not self.average:
            self.average = {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}

    def train_epoch(self, epoch, steps):
        for step in steps:
            step()
            self.steps_taken += 1
            for name, tensor in self.model.named_parameters():
                self.average[name].lerp_(tensor.detach(), 0.1)

    def on_epoch_end(self, epoch, modules):
        self.ended.append(epoch)

    def outputs(self, modules, batch):
        print("examples at once:", len(next(iter(batch.values()))))
        return super().outputs({"model": lambda inputs: functional_call(modules["model"], self.average, (inputs,))}, batch)

    def state_dict(self):
        return {"average": self.average, "steps_taken": self.steps_taken, "ended": self.ended}

    def load_state_dict(self, state):
        self.average, self.steps_taken, self.ended = state["average"], state["steps_taken"], state["ended"]
"""
RINGS = """
from pathlib import Path

from snaketrain.strategies.ddp import Ddp


class Rings(Ddp):
    degrees = {"ring": "data_parallel"}

    def __init__(self, ring, **options):
        super().__init__(**options)
        self.ring = ring

    def start(self):
        super().start()
        Path(__file__).with_name(f"ring-{self.rank // self.ring}-{self.rank % self.ring}").touch()
"""


def prepared(folder: Path, **train) -> Path:
    """The manifest of a dataset class, as the stage writes it."""
    data = Data.model_validate({"name": "items", "train": train, "limit_train": 300, "limit_dev": 37})
    write_manifest(folder / "manifest.json", Manifest("prepare_data", "x", {"data": data.as_json}, {}, {}, prepare_items(data, folder)))
    return folder / "manifest.json"


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    return prepared(tmp_path_factory.mktemp("digits"), use=f"{EXAMPLES}/digits.py:Digits", arguments={"shift": 1})


@pytest.fixture
def averaging(tmp_path) -> dict:
    (tmp_path / "averaging.py").write_text(AVERAGING)
    return {"use": f"{tmp_path}/averaging.py:Averaging", "arguments": DIGITS["arguments"]}


def curves(folder: Path, event: str) -> dict[tuple[int, str], float]:
    """All losses, or all metrics of the evaluations, by step and name."""
    lines = [line for line in read_events(folder / "journal.jsonl")[0] if line["event"] == event]
    return {(line["step"], name): v for line in lines for name, v in line["metrics"].items() if event == "eval" or name.startswith("loss")}


def test_a_custom_strategy_trains(tmp_path, digits):
    """Its declarations are tested in test_strategy_declarations.py."""
    (tmp_path / "rings.py").write_text(RINGS)
    own = {"use": f"{tmp_path}/rings.py:Rings", "arguments": {"ring": 2}}
    settings = {"task": DIGITS, "model": CNN, "batch_size": 32, "steps": 4}
    found = train(digits, tmp_path / "own", 2, strategy=own, **settings)
    assert sorted(path.name for path in tmp_path.glob("ring-*")) == ["ring-0-0", "ring-0-1"]
    assert found == train(digits, tmp_path / "ours", 2, strategy="ddp", **settings)


def test_the_strategy_of_the_documentation_trains(tmp_path, digits):
    """Compressed gradients change the losses a little."""
    page = (REPOSITORY / "docs/own_strategy.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(# my_strategy.*?)```", page, re.DOTALL)
    (tmp_path / "my_strategy.py").write_text(shown)
    settings = {"task": DIGITS, "model": CNN, "batch_size": 32, "steps": 4}
    found = train(digits, tmp_path / "own", 2, strategy={"use": f"{tmp_path}/my_strategy.py:CompressedDdp"}, **settings)
    plain = train(digits, tmp_path / "ours", 2, strategy="ddp", **settings)
    assert found == pytest.approx(plain, rel=1e-2) and found != plain


def test_the_callback_of_the_documentation_ends_a_training(tmp_path, digits):
    page = (REPOSITORY / "docs/own_callback.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(# my_callback.*?)```", page, re.DOTALL)
    (tmp_path / "my_callback.py").write_text(shown)
    own = {"use": f"{tmp_path}/my_callback.py:StopWhenGood", "arguments": {"metric": "accuracy", "at_least": 0.0}}
    train(digits, tmp_path / "run", task=DIGITS, model=CNN, batch_size=32, steps=12, evaluate_every=3, callbacks=[own])
    evaluated = [event["step"] for event in read_events(tmp_path / "run/journal.jsonl")[0] if event["event"] == "eval"]
    assert max(evaluated) == 3  # the first evaluation is before the first step


def test_the_trainer_of_the_documentation_clips_weights_after_each_update(tmp_path, digits):
    page = (REPOSITORY / "docs/own_trainer.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(# my_trainer.*?)```", page, re.DOTALL)
    (tmp_path / "my_trainer.py").write_text(shown)
    own = {"use": f"{tmp_path}/my_trainer.py:ClippedWeights", "arguments": {"limit": 0.02}}
    settings = {"task": DIGITS, "model": CNN, "batch_size": 32, "steps": 6, "learning_rate": 0.01}
    found = train(digits, tmp_path / "own", 2, trainer=own, **settings)
    assert found != train(digits, tmp_path / "ours", 2, **settings)
    largest = {}
    for folder in ("own", "ours"):
        (file,) = (tmp_path / folder / "checkpoints").glob("step-00000006/*.safetensors")
        largest[folder] = max(float(abs(weights).max()) for weights in load_file(file).values())
    assert largest["own"] == pytest.approx(0.02) and largest["ours"] > 0.1


DRAWN = """
import os
from snaketrain.tasks.text_classification import TextClassification  # noqa: E402

class Drawn(TextClassification):
    metrics, evaluations = {"score": "max"}, 0

    def measure(self, sums):
        self.evaluations += 1
        return {"score": self.evaluations if os.environ["RANK"] == "0" else -self.evaluations}
"""
UNEVEN = """
import os
from snaketrain.tasks.text_classification import TextClassification  # noqa: E402

class Uneven(TextClassification):
    def evaluation_step(self, outputs, batch):
        sums = super().evaluation_step(outputs, batch)
        return sums | ({"more": sums["loss"]} if os.environ["RANK"] == "0" else {})
"""


def test_processes_decide_by_one_value_of_a_metric(data, tmp_path):
    """Such as one that is estimated from random samples: else one process would save its best checkpoint, and its peer go on."""
    (tmp_path / "drawn.py").write_text(DRAWN)
    train(data, tmp_path / "run", 2, task=f"{tmp_path}/drawn.py:Drawn", save_every=1000)
    scores = [metrics for (step, _), metrics in curves(tmp_path / "run", "eval").items() if step]
    assert len(scores) > 2 and scores == list(range(2, len(scores) + 2)), "those of the first process"


def test_a_sum_that_only_some_processes_have_is_refused(data, tmp_path):
    (tmp_path / "uneven.py").write_text(UNEVEN)
    codes = forking.wait(start(data, tmp_path / "run", 2, task=f"{tmp_path}/uneven.py:Uneven"))
    assert codes == [1, 1]
    assert "`evaluation_step` has not returned the same names in all processes" in log_of(tmp_path / "run").read_text()


def last_checkpoint(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(("processes", "accumulate"), [(2, 1), (2, 2)])
def test_two_modules_train_equally_on_any_number_of_processes(tmp_path, processes, accumulate):
    """Each learns from its own loss only: under DDP the other one is handed over unwrapped, and its gradients are dropped."""
    data = prepared(tmp_path, use=f"{EXAMPLES}/gan_task.py:Ring", arguments={"count": 500})
    settings = {"task": f"{EXAMPLES}/gan_task.py:Gan", "model": Model(use="torch.nn.Sequential", arguments={"width": 16}), "batch_size": 16}
    settings |= {"groups": [{"match": "discriminator.*", "rate_scale": 2.0}], "epochs": 2, "learning_rate": 5e-3, "schedule": "constant"}
    train(data, tmp_path / "alone", **settings)
    train(data, tmp_path / "several", processes, accumulate=accumulate, **settings)
    expected, found = (curves(tmp_path / name, "train") for name in ("alone", "several"))
    assert {name for _, name in expected} == {"loss", "loss_discriminator", "loss_generator"}
    assert max(step for step, _ in expected) > 30
    assert found == pytest.approx(expected, rel=1e-5)
    distances = [curves(tmp_path / name, "eval") for name in ("alone", "several")]
    assert distances[1] == pytest.approx(distances[0], rel=1e-4)
    assert distances[0][max(distances[0])] < 0.95 * distances[0][0, "distance"]  # the generator has learnt
    assert expected[max(expected)[0], "loss_discriminator"] < 0.95 * expected[1, "loss_discriminator"]  # and the other one


@pytest.mark.parametrize("processes", [2, 3])
def test_a_configured_module_trains_equally_on_any_number_of_processes(digits, tmp_path, processes):
    """Random numbers of an item are equal on any number of processes, and torchmetrics counts each example once."""
    train(digits, tmp_path / "alone", model=CNN, task=DIGITS)
    train(digits, tmp_path / "several", processes, model=CNN, task=DIGITS)
    assert losses(tmp_path / "several") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)
    expected, found = (curves(tmp_path / name, "eval") for name in ("alone", "several"))
    assert {name for _, name in expected} == {"loss", "accuracy"}
    assert found == pytest.approx(expected, rel=1e-5)


COUNTING = """
from snaketrain.tasks.module import Module

class Counting(Module):
    def training_step(self, modules, batch):
        predictions = self.predictions(modules, batch)
        right, large = predictions["output"].argmax(1) == batch["target"], batch["target"] > 4
        return self.parts(predictions, batch), {"right": right.sum(), "right_of_large": ((right & large).sum(), large.sum())}
"""


def test_figures_beside_the_loss_are_equal_on_any_number_of_processes(digits, tmp_path):
    (tmp_path / "counting.py").write_text(COUNTING)
    counting = {"use": f"{tmp_path}/counting.py:Counting", "arguments": DIGITS["arguments"]}
    train(digits, tmp_path / "plain", model=CNN, task=DIGITS)
    train(digits, tmp_path / "alone", model=CNN, task=counting)
    train(digits, tmp_path / "several", 2, model=CNN, task=counting, accumulate=2)
    alone, several = (
        [line["metrics"] for line in read_events(tmp_path / name / "journal.jsonl")[0] if line["event"] == "train"]
        for name in ("alone", "several")
    )
    assert losses(tmp_path / "alone") == losses(tmp_path / "plain"), "figures leave the loss as it is"
    for name in ("right", "right_of_large"):
        expected = [line[name] for line in alone]
        assert (
            [line[name] for line in several] == pytest.approx(expected)
            and len(set(expected)) > 1
            and all(0 <= each <= 1 for each in expected)
        )


def test_a_task_with_hooks_and_state_resumes(digits, tmp_path, averaging):
    settings = {"model": CNN, "task": averaging, "epochs": 10, "evaluations_per_epoch": 1}
    train(digits, tmp_path / "whole", **settings)
    pids = start(digits, tmp_path / "parts", **settings)
    # within an epoch, and after several
    assert interrupted(pids, signal.SIGTERM, lambda: len(losses(tmp_path / "parts")) >= 25) == [75]
    train(digits, tmp_path / "parts", **settings)
    assert len([line for line in read_events(tmp_path / "parts/journal.jsonl")[0] if line["event"] == "attempt"]) == 2
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert curves(tmp_path / "parts", "eval") == curves(tmp_path / "whole", "eval")  # of the averaged weights
    kept, expected = (torch.load(last_checkpoint(tmp_path / name) / "task.memory.pt", weights_only=True) for name in ("parts", "whole"))
    assert kept["steps_taken"] == max(losses(tmp_path / "whole")) and kept["ended"] == list(range(10))
    assert all(torch.equal(kept["average"][name], tensor) for name, tensor in expected["average"].items())
    learnt = load_file(last_checkpoint(tmp_path / "whole") / "model.safetensors")
    assert not all((learnt[name] == tensor.numpy()).all() for name, tensor in expected["average"].items())


def test_a_task_that_wraps_its_modules_is_evaluated_with_its_state(digits, tmp_path, averaging):
    settings = {"model": CNN, "task": averaging}
    train(digits, tmp_path / "alone", **settings)
    train(digits, tmp_path / "training", 2, **settings)
    assert losses(tmp_path / "training") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)
    assert (
        load_file(last_checkpoint(tmp_path / "training") / "model.safetensors").keys()
        == load_file(last_checkpoint(tmp_path / "alone") / "model.safetensors").keys()
    )
    stages = {
        "select_checkpoint": settings_words(tmp_path, "select_checkpoint", {"select": {"metric": "loss"}}),
        "evaluate_model": [
            "--run-name",
            "test",
            "--device",
            "cpu",
            *settings_words(tmp_path, "evaluate_model", {"evaluate": {"batch_size": 7}}),
        ],
    }
    for stage, options in stages.items():
        folder = {"select_checkpoint": "selection", "evaluate_model": "evaluation"}[stage]
        inputs = {"--training": "training", "--selection": "selection", "--output": folder}
        paths = [word for option, name in inputs.items() for word in (option, f"{tmp_path}/{name}/manifest.json")]
        paths = paths if stage == "evaluate_model" else [*paths[:2], *paths[4:]]
        run_stage(stage, [*paths, "--data", digits, *options], tmp_path / "log")
    winner = json.loads((tmp_path / "selection/selection.json").read_text())["winner"]["metrics"]
    results = json.loads((tmp_path / "evaluation/dev_results.json").read_text())
    assert results["metrics"] == pytest.approx(winner, rel=1e-5)
    assert results["baselines"]["majority"]["accuracy"] < 0.3 and "confusion" in results  # labels that only the task knows
    assert results["baselines"]["constant"]["accuracy"] < 0.3 and results["baselines"]["constant"]["loss"] == pytest.approx(2.2, abs=0.2)

    # trained again to the same weights, with another metric of the same name: the former value must not be reported
    manifest = tmp_path / "training/manifest.json"
    trained = manifest.read_text()
    assert '"average": "macro"' in trained
    changed = json.loads(trained.replace('"average": "macro"', '"average": "micro"'))
    del changed["checksum"]
    manifest.write_text(with_checksum(changed))
    words = ["--run-name", "test", "--device", "cpu", *settings_words(tmp_path, "evaluate_model", {"evaluate": {"confidence": 0.9}})]
    printed = run_stage("evaluate_model", [*paths, "--data", digits, *words], tmp_path / "log")
    # without a batch size: as many as each of the training's two processes evaluated
    assert (
        max(map(int, re.findall(r"examples at once: (\d+)", printed))) == 16
    )  # the batch size of the training: two microbatches, divided by two
    again = json.loads((tmp_path / "evaluation/dev_results.json").read_text())
    assert again["metrics"]["accuracy"] == pytest.approx(results["accuracy"]) != results["metrics"]["accuracy"]
