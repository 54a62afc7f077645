"""Schedulers of torch, as functions of the step and at each evaluation, against torch's own loop; groups with schedules of their own."""

import pytest
import torch
from torch.optim import lr_scheduler

from snaketrain.checking.optimization import problems
from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Train
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.preflight import examine
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Task
from snaketrain.training.building import selection_callbacks
from snaketrain.training.checkpoints.ranking import Selection
from snaketrain.training.early_stopping import ReduceOnPlateau
from snaketrain.training.plan import Plan
from snaketrain.training.state import TrainState

RATE, STEPS = 0.02, 40
SCHEDULERS = {
    "StepLR": {"step_size": 7, "gamma": 0.5},
    "MultiStepLR": {"milestones": [5, 20], "gamma": 0.3},
    "ExponentialLR": {"gamma": 0.95},
    "OneCycleLR": {"pct_start": 0.25, "cycle_momentum": False},
    "CosineAnnealingLR": {"eta_min": 0.001},
    "CosineAnnealingWarmRestarts": {"T_0": 6, "T_mult": 2},
    "PolynomialLR": {"total_iters": 30, "power": 2.0},
    "LinearLR": {"start_factor": 0.1, "total_iters": 12},
    "CyclicLR": {"base_lr": 0.001, "step_size_up": 5, "cycle_momentum": False},
}
SET_BY_TRAINER = {"OneCycleLR": {"max_lr": RATE, "total_steps": STEPS}, "CosineAnnealingLR": {"T_max": STEPS}, "CyclicLR": {"max_lr": RATE}}


def plan_of(**train) -> Plan:
    return Plan.of(Train(**({"batch_size": 8, "steps": STEPS, "learning_rate": RATE, "warmup": 0} | train)), [1] * 100)


def rates_of_torch(name: str, count: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=RATE)
    scheduler, rates = getattr(lr_scheduler, name)(optimizer, **SCHEDULERS[name], **SET_BY_TRAINER.get(name, {})), []
    for step in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < count:
            scheduler.step()
    return rates


@pytest.mark.parametrize("name", SCHEDULERS)
def test_rates_equal_those_of_torch_also_after_a_resume(name):
    schedule = {"use": f"torch.optim.lr_scheduler.{name}", "arguments": SCHEDULERS[name]}
    plan, expected = plan_of(schedule=schedule), rates_of_torch(name, STEPS)
    assert [plan.learning_rate_at(step) for step in range(1, STEPS + 1)] == pytest.approx(expected, rel=1e-9)
    assert plan_of(schedule=schedule).learning_rate_at(25) == pytest.approx(expected[24], rel=1e-9), "asked for first"
    longer = plan_of(schedule=schedule, steps=STEPS + 10)
    same = all(longer.learning_rate_at(step) == plan.learning_rate_at(step) for step in range(1, STEPS + 1))
    assert same == ("total_steps" not in SET_BY_TRAINER.get(name, {}) and "T_max" not in SET_BY_TRAINER.get(name, {}))


def test_a_warmup_comes_before_the_scheduler():
    plan = plan_of(schedule={"use": "torch.optim.lr_scheduler.StepLR", "arguments": {"step_size": 10}}, warmup=4)
    assert [plan.learning_rate_at(step) / RATE for step in (1, 3, 5, 14, 15)] == pytest.approx([0, 0.5, 1, 1, 0.1])


PLATEAU = {"use": "torch.optim.lr_scheduler.ReduceLROnPlateau", "arguments": {"factor": 0.5, "patience": 1, "cooldown": 1}}


def test_a_plateau_lowers_the_rate_as_in_torch_however_often_the_training_is_resumed():
    values = [3.0, 2.0, 2.5, 2.5, 2.5, 1.0, 1.5, 1.5, 1.5, 1.5, 1.5]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=RATE)
    reference, expected, found = lr_scheduler.ReduceLROnPlateau(optimizer, **PLATEAU["arguments"]), [], []
    callback = ReduceOnPlateau(Selection("m", "min"), PLATEAU["arguments"], RATE)
    for step, value in enumerate(values, start=1):
        reference.step(value)
        expected.append(optimizer.param_groups[0]["lr"])
        resumed, state = ReduceOnPlateau(Selection("m", "min"), PLATEAU["arguments"], RATE), TrainState(Task(), Strategy("cpu", "fp32"), {})
        resumed.load_state_dict(callback.state_dict())
        callback = resumed
        callback.on_train_start(state)
        callback.on_evaluation(state, {"m": 99.0})  # of the initial weights
        state.step = step
        callback.on_evaluation(state, {"m": value})
        found.append(RATE * state.rate_scale)
    assert found == pytest.approx(expected) and len(set(found)) > 2


def test_higher_can_be_better_on_a_plateau():
    callback, state = ReduceOnPlateau(Selection("m", "max"), {"patience": 0}, RATE), TrainState(Task(), Strategy("cpu", "fp32"), {}, step=1)
    for value, scale in ((1.0, 1.0), (2.0, 1.0), (1.5, 0.1)):
        callback.on_evaluation(state, {"m": value})
        assert state.rate_scale == pytest.approx(scale)


def test_arguments_of_a_plateau_may_name_variables(monkeypatch):
    """In the check before the first job and in the training."""
    monkeypatch.setenv("KIND_OF_THRESHOLD", "abs")
    train = Train(schedule={"use": PLATEAU["use"], "arguments": {"threshold_mode": "${KIND_OF_THRESHOLD}"}})
    assert list(problems("train.schedule", train.schedule, train.learning_rate, STEPS, True)) == []
    (plateau,) = selection_callbacks(train, Selection("m", "min"))
    assert plateau.scheduler.threshold_mode == "abs"


DATA = {"train": {"path": "a.csv"}, "tokenizer": {"path": "tokenizer"}}


def test_a_plateau_depends_on_what_selects_the_checkpoint():
    plain, plateau = (
        [
            Pipeline({"data": DATA, "train": train, "select": {"metric": metric}}, reads_files=False)
            .stages["train_model"]
            .planned("default")
            for metric in ("loss", "accuracy")
        ]
        for train in ({}, {"schedule": PLATEAU})
    )
    assert plain[0] == plain[1] and plateau[0] != plateau[1]


TORCH = "torch.optim.lr_scheduler"


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"schedule": {"use": f"{TORCH}.StepLR"}}, "train.schedule.arguments.step_size: is missing. Give it a value."),
        ({"schedule": {"use": f"{TORCH}.StepLR", "arguments": {"step_size": 3, "gama": 1}}}, "train.schedule.arguments.gama: no such argument. Did you mean 'gamma'?"),
        ({"schedule": {"use": f"{TORCH}.OneCycleLR", "arguments": {"max_lr": 1, "cycle_momentum": False}}, "warmup": 0}, "train.schedule.arguments.max_lr: is set by train.learning_rate"),
        ({"schedule": {"use": f"{TORCH}.OneCycleLR", "arguments": {"total_steps": 9, "cycle_momentum": False}}, "warmup": 0}, "train.schedule.arguments.total_steps: is set by the length of the training"),
        ({"schedule": {"use": f"{TORCH}.OneCycleLR"}, "warmup": 0}, "train.schedule.arguments.cycle_momentum: a schedule changes the learning rate alone"),
        ({"schedule": {"use": f"{TORCH}.OneCycleLR", "arguments": {"cycle_momentum": False}}}, "train: `warmup` is 0.01, and OneCycleLR has a warm-up of its own"),
        ({"schedule": f"{TORCH}.ChainedScheduler"}, "train.schedule: ChainedScheduler cannot be made"),
        ({"schedule": f"{TORCH}.LambdaLR"}, "train.schedule: "),
        ({"schedule": {"use": f"{TORCH}.ReduceLROnPlateau", "arguments": {"mode": "max"}}}, "train.schedule.arguments.mode: follows from select.metric"),
        ({"groups": [{"match": "*", "schedule": f"{TORCH}.ReduceLROnPlateau"}]}, "train.groups.0.schedule.use: ReduceLROnPlateau lowers the rates of all groups"),
        ({"groups": [{"match": "*", "schedule": "cosin"}]}, "train.groups.0.schedule.use: `cosin` is not one of"),
        ({"groups": [{"match": "*", "optimizer": "torch.optim.Mion"}]}, "train.groups.0.optimizer.use: `torch.optim` has no `Mion`"),
        ({"groups": [{"match": "*", "optimizer": {"use": "torch.optim.Muon", "arguments": {"lr": 1}}}]}, "train.groups.0.optimizer.arguments.lr: is set by train.learning_rate"),
        ({"groups": [{"match": "*", "optimizer": {"use": "torch.optim.Muon", "arguments": {"momentun": 1}}}]}, "train.groups.0.optimizer.arguments.momentun: no such argument"),
        ({"optimizer": "torch.optim.LBFGS"}, "train.optimizer.use: torch.optim.LBFGS computes the loss several times in a step"),
    ],
)  # fmt: skip
def test_errors_show_before_any_job(by_effect, train, words):
    with pytest.raises(ConfigurationError) as error:
        examine({"data": DATA, "train": train})
    found = [problem for problem in error.value.problems if problem.startswith("train") and "source" not in problem]
    assert len(found) == 1 and found[0].startswith(words), error.value.problems


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_torch_pass_the_checks(name):
    with pytest.raises(ConfigurationError) as error:
        examine({"data": DATA, "train": {"schedule": {"use": f"{TORCH}.{name}", "arguments": SCHEDULERS[name]}, "warmup": 0}})
    assert not [problem for problem in error.value.problems if problem.startswith("train")]
