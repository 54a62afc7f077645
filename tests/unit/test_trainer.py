"""The trainer in a notebook: from settings, with custom code, without the workflow."""

import copy
import gzip
import json
from pathlib import Path

import pytest
import torch
from points import EXAMPLES, TRAIN, Points

from snaketrain import Trainer, TrainerOptions
from snaketrain.config.schema import Model, Settings, Train, Use
from snaketrain.data.loading.examples import Splits
from snaketrain.orchestration.own_files import code_of_training
from snaketrain.runtime.journal import read_events
from snaketrain.training.building import load_callbacks
from snaketrain.training.checkpoints.ranking import Selection
from snaketrain.training.watching import Profiler

OWN = """
import copy
from pathlib import Path

import torch  # noqa: E402
from points import Classify
from snaketrain import Callback


class Mine(Classify):
    def __init__(self):
        super().__init__(dropout=0.5)


class LastLoss(Callback):
    def __init__(self, path):
        self.path = Path(path)

    def on_log(self, state, figures):
        self.path.write_text(f"{state.step} {figures['loss']}")


class NoCallback:
    pass


class Preferring(Classify):
    # compares with a copy of itself that nothing learns from, as DPO does
    def __init__(self):
        super().__init__(dropout=0.0)

    def build(self, model, folder, data):
        policy = super().build(model, folder, data)["model"]
        return {"model": policy, "reference": copy.deepcopy(policy)}

    def objectives(self, modules):
        return [(self.training_step, ["model"])]

    def training_step(self, modules, batch):
        gains = modules["model"](batch["places"]) - modules["reference"](batch["places"])
        return -torch.nn.functional.logsigmoid(gains.gather(1, batch["classes"][:, None])).sum()


class Both(Preferring):
    def objectives(self, modules):
        return [(self.training_step, ["model", "reference"])]
"""


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    callback = {"use": f"{tmp_path}/own.py:LastLoss", "arguments": {"path": str(tmp_path / "last.txt")}}
    return Train(**TRAIN, task=f"{tmp_path}/own.py:Mine", callbacks=[callback])


def trainer_of(settings: Train, folder: Path, **options: object) -> Trainer:
    data = Splits(Points(EXAMPLES, seed=0), Points(21, seed=1), {})
    return Trainer.from_settings(settings, Model(use="torch.nn.Linear"), data, folder, TrainerOptions(**options))


def test_a_notebook_needs_settings_and_data_and_a_folder(tmp_path, settings):
    trainer = trainer_of(settings, tmp_path / "run", log_every=4)
    state = trainer.fit()
    assert trainer.complete and state.step == 15 and state.parameters == 99
    lines = [event for event in read_events(tmp_path / "run/journal.jsonl")[0] if event["event"] == "train"]
    assert [line["step"] for line in lines] == [4, 8, 12, 15]
    assert (tmp_path / "last.txt").read_text() == f"15 {lines[-1]['metrics']['loss']}"
    assert trainer_of(settings, tmp_path / "run").fit().step == 15  # resumed, with nothing left to do


@pytest.mark.parametrize(
    ("size", "told"), [(EXAMPLES, []), (EXAMPLES + 1, ["train.batch_size is 36, more than the training data has (35)"])]
)
def test_a_batch_that_is_larger_than_the_data_is_told(tmp_path, settings, caplog, size, told):
    trainer_of(settings.model_copy(update={"batch_size": size, "warmup": 0}), tmp_path / "run").fit()
    assert [record.getMessage().partition(":")[0] for record in caplog.records if record.levelname == "WARNING"] == told


TRAINER = """
from snaketrain import Trainer


class Mine(Trainer):
    def __init__(self, *given, halve_after, **others):
        super().__init__(*given, **others)
        self.halve_after = halve_after

    def train_step(self, planned):
        self.state.rate_scale = 0.5 if planned.step > self.halve_after else 1.0
        super().train_step(planned)
"""


def test_the_settings_can_name_a_trainer(tmp_path, settings):
    (tmp_path / "mine.py").write_text(TRAINER)
    mine = settings.model_copy(update={"trainer": Use(use=f"{tmp_path}/mine.py:Mine", arguments={"halve_after": 8})})
    rates = []
    for train, name in ((settings, "plain"), (mine, "mine")):
        trainer = trainer_of(train, tmp_path / name, log_every=1)
        assert trainer.fit().step == 15 and trainer.complete
        events = read_events(tmp_path / name / "journal.jsonl")[0]
        rates.append([event["metrics"]["learning_rate"] for event in events if event["event"] == "train"])
    assert rates[1] == rates[0][:8] + [rate / 2 for rate in rates[0][8:]]
    assert (tmp_path / "plain/checkpoints/step-00000015/model.safetensors").read_bytes() != (
        tmp_path / "mine/checkpoints/step-00000015/model.safetensors"
    ).read_bytes()
    with pytest.raises(SystemExit, match=r"train.trainer.use: `.*own.py:Mine` is not a trainer. Derive it from snaketrain.Trainer"):
        trainer_of(settings.model_copy(update={"trainer": Use(use=f"{tmp_path}/own.py:Mine")}), tmp_path / "other")


def test_a_changed_trainer_makes_a_training_stale_and_none_changes_nothing(tmp_path):
    (tmp_path / "mine.py").write_text(TRAINER)
    data = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}
    plain, mine = (Settings.model_validate({"data": data, "train": each}) for each in ({}, {"trainer": f"{tmp_path}/mine.py:Mine"}))
    assert {*code_of_training(mine)} - {*code_of_training(plain)} == {tmp_path / "mine.py"}
    assert "trainer" not in plain.train.as_json and "trainer" in mine.train.as_json


@pytest.mark.parametrize("checkpoint_format", ["auto", "sharded"])
def test_a_frozen_module_that_no_objective_learns_from_stays_as_it_was(tmp_path, settings, checkpoint_format):
    changes = {"task": Use(use=f"{tmp_path}/own.py:Preferring"), "freeze": ["reference.*"], "epochs": 1.0, "groups": []}
    frozen = settings.model_copy(update=changes)
    first = trainer_of(frozen, tmp_path / "run", until=0, checkpoint_format=checkpoint_format)
    before = {name: copy.deepcopy(module.state_dict()) for name, module in first.state.modules.items()}
    trainer_of(frozen, tmp_path / "run", until=2, checkpoint_format=checkpoint_format).fit()
    state = trainer_of(frozen, tmp_path / "run", checkpoint_format=checkpoint_format).fit()  # resumed
    assert state.step == 5
    after = {name: module.state_dict() for name, module in state.modules.items()}
    assert all(torch.equal(tensor, before["reference"][name]) for name, tensor in after["reference"].items())
    assert not any(torch.equal(tensor, before["model"][name]) for name, tensor in after["model"].items())
    both = frozen.model_copy(update={"task": Use(use=f"{tmp_path}/own.py:Both")})
    with pytest.raises(
        SystemExit, match="nothing of the module `reference` is left to train. Freeze less, or leave it out of the task's `objectives`"
    ):
        trainer_of(both, tmp_path / "both")


def test_a_folder_with_a_training_of_other_settings_is_refused(tmp_path, settings):
    trainer_of(settings, tmp_path / "run", until=8).fit()
    before = sorted(path.name for path in tmp_path.glob("run/checkpoints/*"))
    other = settings.model_copy(update={"learning_rate": 0.01})
    with pytest.raises(
        SystemExit, match=r"run: holds a training with other settings, at step 8: train.learning_rate 0.02 there, 0.01 here. Train in"
    ):
        trainer_of(other, tmp_path / "run").fit()
    fewer = Splits(Points(EXAMPLES - 1, seed=0), Points(21, seed=1), {})
    with pytest.raises(SystemExit, match="data.train .*35 examples.* there, .*34 examples.* here"):
        Trainer.from_settings(settings, Model(use="torch.nn.Linear"), fewer, tmp_path / "run").fit()
    assert sorted(path.name for path in tmp_path.glob("run/checkpoints/*")) == before
    accumulated = settings.model_copy(update={"accumulate": 2})  # equal up to rounding
    assert trainer_of(accumulated, tmp_path / "run", until=9).fit().step == 9
    assert trainer_of(other, tmp_path / "run", resume_changed=True).fit().step == 15


def test_the_best_value_of_another_metric_is_forgotten(tmp_path, settings):
    """It is that of all evaluations so far as the selection counts now."""
    lowest, highest = Selection("loss", "min"), Selection("loss", "max")
    saving = settings.model_copy(update={"save_every": 1, "evaluate_every": 3, "evaluations_per_epoch": None})
    first = trainer_of(saving, tmp_path / "run", selection=highest, until=8)
    first.fit()
    resumed = trainer_of(saving, tmp_path / "run", selection=lowest, until=8)
    resumed.resume()
    found = [event["metrics"] for event in read_events(tmp_path / "run/journal.jsonl")[0] if event["event"] == "eval" and event["step"]]
    assert len(found) == 2 and first.best.best == max(metrics["loss"] for metrics in found)
    assert resumed.best.best == -min(metrics["loss"] for metrics in found)


def test_weights_that_the_settings_name_must_be_passed(tmp_path, settings):
    data = Splits(Points(EXAMPLES, seed=0), Points(21, seed=1), {})
    source = {"path": "somewhere"}
    for named, problem in (
        ({"source": source}, r"^model.source: names weights that are not passed. .* weights=open_run\(...\).weights.$"),
        ({"initial_weights": {"source": source}}, r"^model.initial_weights: names .* initial_weights=open_run"),
    ):
        with pytest.raises(SystemExit, match=problem):
            Trainer.from_settings(settings, Model(use="torch.nn.Linear", **named), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_class_that_is_not_a_callback_is_refused(tmp_path, settings):
    wrong = settings.model_copy(update={"callbacks": Train(callbacks=[f"{tmp_path}/own.py:NoCallback"]).callbacks})
    with pytest.raises(SystemExit, match=r"train.callbacks.0: .*own.py:NoCallback makes a NoCallback, which is not a callback"):
        load_callbacks(wrong)


def test_the_configured_steps_are_profiled(tmp_path, settings):
    trainer = trainer_of(settings, tmp_path / "run", callbacks=[Profiler(tmp_path / "profile", first_step=3, steps=2)])
    trainer.fit()
    [trace] = (tmp_path / "profile").iterdir()
    assert trace.name == "rank-0-steps-3-4.json.gz"
    names = [event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"] if "name" in event]
    assert sum(name.startswith("Optimizer.step") for name in names) == 2
