"""What checkpoints restore, which are kept, and which is loaded."""

import gc
import math
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import limits
import pytest
import torch
from torch import nn

from select_checkpoint import rank_checkpoints
from snaketrain.models.weights import load_weights
from snaketrain.runtime.ownership import TakenOver
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.causal_lm import CausalLm
from snaketrain.tasks.metric_names import mode_of, modes_of
from snaketrain.tasks.text_classification import TextClassification
from snaketrain.training.checkpoints.exporting import export_weights
from snaketrain.training.checkpoints.formats import make_format
from snaketrain.training.checkpoints.publishing import read_listing
from snaketrain.training.checkpoints.ranking import BY_LOSS, BestMetric, Selection, is_sharded
from snaketrain.training.checkpoints.store import Checkpoints
from snaketrain.training.state import TrainState


class Second(Strategy):
    """Rank 1 of two; `received` is what rank 0 broadcasts."""

    rank, world_size = 1, 2

    def __init__(self, received: Any):
        super().__init__("cpu", "fp32")
        self.received = received

    def all_gather_object(self, item: Any) -> list[Any]:
        assert item == (None, None)  # only rank 0 chooses
        return [(self.received, None), item]


def learner(strategy: Strategy) -> TrainState:
    module = nn.Linear(40, 30)
    return TrainState(None, strategy, {"model": module}, {"model": torch.optim.AdamW(module.parameters(), lr=0.1)}, None)


SINGLE = Strategy("cpu", "fp32")
FORMATS = ("whole", "sharded")


def train_and_save(folder: Path, steps: int, format: str = "whole") -> dict[int, torch.Tensor]:
    """A checkpoint after each step; the weights at each."""
    ours, checkpoints, weights = learner(SINGLE), Checkpoints(folder, BY_LOSS, steps, make_format(format, SINGLE)), {}
    module, optimizer = ours.modules["model"], ours.optimizers["model"]
    for step in range(1, steps + 1):
        take_a_step(module, optimizer)
        checkpoints.save(replace(ours, step=step), {"loss": 1.0}, {})
        weights[step] = module.weight.detach().clone()
    checkpoints.finish()
    return weights


def test_all_ranks_load_the_checkpoint_that_rank_0_chose(tmp_path):
    """Another rank may see a different newest checkpoint: on another machine, or when one has just been written."""
    weights = train_and_save(tmp_path, 3)
    chosen = sorted(tmp_path.glob("step-*"))[1]
    second = learner(Second(chosen))
    assert Checkpoints(tmp_path, BY_LOSS, 3).restore(second, {}) == 2
    assert torch.equal(second.modules["model"].weight, weights[2])
    assert Checkpoints(tmp_path, BY_LOSS, 3).restore(learner(Second(None)), {}) == 0


@pytest.mark.parametrize(("task", "metric"), [(TextClassification, "loss"), (CausalLm, "perplexity")])
def test_the_lowest_loss_is_kept_and_selected(tmp_path, task, metric):
    """Without `select.mode`: the metric declares that lower is better."""
    mode = mode_of(metric, modes_of(task.metrics, "class", "the task"), None)
    ours, checkpoints = learner(Strategy("cpu", "fp32")), Checkpoints(tmp_path / "checkpoints", Selection(metric, mode), 1)
    for step, value in enumerate((3.0, 1.0, 2.0, 4.0), start=1):
        checkpoints.save(replace(ours, step=step), {metric: value}, {})
    checkpoints.finish()
    assert [(entry["step"], entry["value"]) for entry in rank_checkpoints(tmp_path, metric, mode)] == [(2, 1.0), (4, 4.0)]


@pytest.mark.parametrize("format", FORMATS)
def test_a_checkpoint_has_the_values_at_the_time_of_saving(tmp_path, monkeypatch, format):
    """The training continues before anything is written, both the first time and when the memory of the copy is reused."""
    ours, checkpoints, writes = learner(SINGLE), Checkpoints(tmp_path, BY_LOSS, 9, make_format(format, SINGLE)), []
    monkeypatch.setattr(checkpoints._background, "start", writes.append)
    module, optimizer, task = ours.modules["model"], ours.optimizers["model"], Remembers()
    for step in (1, 2, 3):
        take_a_step(module, optimizer)
        task.mean.add_(1)
        checkpoints.save(replace(ours, step=step), None, {"task": task})
        then = [tensor.detach().clone() for tensor in tensors(module, optimizer)]
        take_a_step(module, optimizer)
        task.mean.add_(100)
        writes.pop()()
        other, remembered = learner(Strategy("cpu", "fp32")), Remembers()
        assert Checkpoints(tmp_path, BY_LOSS, 9).restore(other, {"task": remembered}) == step
        assert all(map(torch.equal, then, tensors(other.modules["model"], other.optimizers["model"])))
        assert remembered.mean.item() == step + 100 * (step - 1)


class Remembers:
    def __init__(self):
        self.mean = torch.zeros(1)

    def state_dict(self) -> dict:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict) -> None:
        self.mean = state["mean"]


def take_a_step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    module(torch.ones(40)).sum().backward()
    optimizer.step()


def tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [*module.parameters(), *(value for state in optimizer.state.values() for value in state.values())]


@pytest.mark.parametrize("format", FORMATS)
def test_loaded_tensors_do_not_need_the_file(tmp_path, format):
    """Files are memory-mapped, without a copy in each process; but old checkpoints are deleted while the training continues."""
    train_and_save(tmp_path, 1, format)
    ours = learner(Strategy("cpu", "fp32"))
    assert Checkpoints(tmp_path, BY_LOSS, 1).restore(ours, {}) == 1
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    shutil.rmtree(tmp_path)
    states = ours.optimizers["model"].state
    assert len(states) == 2 and all(state["step"] == 1 and state["exp_avg"].abs().sum() > 0 for state in states.values())


@pytest.mark.parametrize(("mode", "kept"), [("min", [2, 4, 6]), ("max", [1, 3, 6])])
def test_the_last_one_and_the_best_are_kept(tmp_path, mode, kept):
    """The earlier one of equal ones; and one without the metric is not among the best."""
    ours, checkpoints = learner(Strategy("cpu", "fp32")), Checkpoints(tmp_path, Selection("loss", mode), 2)
    for step, loss in enumerate([0.8, 0.2, 0.9, 0.1, 0.2, None], start=1):
        checkpoints.save(replace(ours, step=step), None if loss is None else {"loss": loss}, {})
    checkpoints.finish()
    assert [int(path.name.removeprefix("step-")) for path in checkpoints.found()] == kept
    assert Checkpoints(tmp_path, Selection("loss", mode), 2).restore(ours, {}) == 6


@pytest.mark.parametrize(
    ("mode", "found", "improved"),
    [
        ("max", [(0.5, 1.0), (0.7, 1.0), (0.3, 1.0)], [True, True, False]),
        ("min", [(0.5, 1.0), (0.7, 1.0), (0.3, 1.0)], [True, False, True]),
        # of equal ones that of the lower loss
        ("max", [(0.5, 2.0), (0.5, 2.0), (0.5, 1.0), (0.4, 0.5), (0.5, math.nan), (0.6, 9.0)], [True, False, True, False, False, True]),
        # otherwise none after an infinite one would be saved as the best
        ("min", [(math.inf, 1.0), (-math.inf, 1.0), (math.nan, 1.0), (1.0, 1.0), (1.0, 1.0)], [False, False, False, True, False]),
        ("max", [(math.inf, 1.0), (-math.inf, 1.0), (math.nan, 1.0), (1.0, 1.0), (1.0, 1.0)], [False, False, False, True, False]),
    ],
)
def test_the_best_metric(mode, found, improved):
    best = BestMetric(Selection("score", mode))
    assert [best.improved({"score": score, "loss": loss}) for score, loss in found] == improved


FILES = {
    "whole": ("model.safetensors", "model.optimizer.pt", "state.json", "checkpoint.json"),
    "sharded": ("weights/__0_0.distcp", "optimizer/__0_0.distcp", "weights/.metadata", "optimizer/model.groups.pt", "checkpoint.json"),
}


@pytest.mark.parametrize(("format", "damaged"), [(format, name) for format, names in FILES.items() for name in names])
@pytest.mark.parametrize("torn", [False, True])
def test_the_previous_checkpoint_replaces_a_damaged_one(tmp_path, capsys, format, damaged, torn):
    weights = train_and_save(tmp_path, 3, format)
    step = tmp_path / "step-00000003"
    path = step / damaged
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if torn else content[:-9] + bytes(byte ^ 1 for byte in content[-9:]))
    ours = learner(Strategy("cpu", "fp32"))
    assert Checkpoints(tmp_path, BY_LOSS, 3).restore(ours, {}) == 2
    assert torch.equal(ours.modules["model"].weight, weights[2])
    assert f"{step} is damaged" in capsys.readouterr().err


class OfTwo(Strategy):
    """One of two ranks, each in a thread of its own."""

    world_size, said, together = 2, [None, None], threading.Barrier(2)

    def __init__(self, rank: int):
        super().__init__("cpu", "fp32")
        self.rank = rank

    def all_gather_object(self, item: Any) -> list[Any]:
        self.said[self.rank] = item
        self.together.wait(limits.seconds(20))
        items = [*self.said]
        self.together.wait(limits.seconds(20))
        return items


@pytest.mark.parametrize("share", [0, 1])
def test_each_rank_verifies_a_share_of_the_shards(tmp_path, share):
    train_and_save(tmp_path, 3, "sharded")
    step = tmp_path / "step-00000003"
    (step / sorted(read_listing(step))[share]).write_bytes(b"")
    with ThreadPoolExecutor(2) as pool:
        restored = pool.map(lambda rank: Checkpoints(tmp_path, BY_LOSS, 3).restore(learner(OfTwo(rank)), {}), (0, 1))
        assert [*restored] == [2, 2]


@pytest.mark.parametrize("damaged", ["model.safetensors", "state.json"])
@pytest.mark.parametrize("loss", [None, 0.5])
def test_what_is_saved_after_a_damaged_checkpoint_is_kept(tmp_path, damaged, loss):
    """Checkpoints that are saved by time are at other steps each time, so that the damaged one is not soon replaced."""
    train_and_save(tmp_path, 1)
    ours, checkpoints = learner(SINGLE), Checkpoints(tmp_path, BY_LOSS, 2)
    checkpoints.save(replace(ours, step=5), loss and {"loss": loss}, {})
    checkpoints.finish()
    (tmp_path / "step-00000005" / damaged).write_bytes(b"")
    assert checkpoints.restore(ours, {}) == 1
    for step in (3, 4):
        checkpoints.save(replace(ours, step=step), None, {})
    checkpoints.finish()
    assert [path.name for path in checkpoints.found()] == ["step-00000001", "step-00000004"]
    assert Checkpoints(tmp_path, BY_LOSS, 2).restore(ours, {}) == 4


def test_a_foreign_pickle_is_never_loaded(tmp_path):
    """`.metadata` is a pickle, and its digest is checked first."""
    train_and_save(tmp_path, 1, "sharded")
    planted = tmp_path / "planted"
    (tmp_path / "step-00000001/weights/.metadata").write_bytes(pickle.dumps(Planted(planted)))
    assert Checkpoints(tmp_path, BY_LOSS, 1).restore(learner(SINGLE), {}) == 0
    assert not planted.exists()


class Planted:
    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("saved", FORMATS)
def test_a_training_resumes_in_the_other_format(tmp_path, saved):
    weights = train_and_save(tmp_path, 2, saved)
    ours = learner(SINGLE)
    other = Checkpoints(tmp_path, BY_LOSS, 3, make_format(*(format for format in FORMATS if format != saved), SINGLE))
    assert other.restore(ours, {}) == 2
    assert torch.equal(ours.modules["model"].weight, weights[2])
    other.save(replace(ours, step=3), {"loss": 0.5}, {})
    other.finish()
    assert {is_sharded(path) for path in other.found()} == {True, False}
    assert Checkpoints(tmp_path, BY_LOSS, 3).restore(learner(SINGLE), {}) == 3


@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_that_was_taken_over_is_not_touched(tmp_path, format):
    """Its new owner may be writing the checkpoint of the same step, while this process is on a node that was cut off."""

    def taken_over() -> None:
        raise TakenOver("job 8 writes here now")

    checkpoints = Checkpoints(tmp_path, BY_LOSS, 1, make_format(format, SINGLE), check=taken_over)
    checkpoints.save(replace(learner(SINGLE), step=5), {"loss": 1.0}, {})
    with pytest.raises(TakenOver):
        checkpoints.finish()
    assert [path.name for path in tmp_path.iterdir()] == [".step-00000005"]


def test_a_format_that_does_not_exist_is_refused():
    with pytest.raises(SystemExit, match="'shards', which is not one of auto, whole, sharded"):
        make_format("shards", SINGLE)


def test_shards_are_exported_as_the_files_of_the_whole_format(tmp_path):
    for format in FORMATS:
        torch.manual_seed(0)
        train_and_save(tmp_path / format, 1, format)
    export_weights(tmp_path / "sharded/step-00000001", tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "whole/step-00000001/model.safetensors").read_bytes()


def test_a_large_module_is_exported_as_several_files_with_an_index(tmp_path):
    weights = train_and_save(tmp_path, 1, "sharded")
    export_weights(tmp_path / "step-00000001", tmp_path, most_bytes=1000)
    assert sorted(path.name for path in tmp_path.glob("model*")) == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    ]  # fmt: skip
    module = nn.Linear(40, 30)
    load_weights(module, tmp_path, "model")
    assert torch.equal(module.weight, weights[1])
    with pytest.raises(SystemExit, match="bias"):
        load_weights(nn.Linear(40, 30, bias=False), tmp_path, "model")


def test_a_kill_while_a_checkpoint_is_replaced_loses_none(tmp_path):
    """A checkpoint saved before its evaluation is saved again afterwards; between two renames neither copy has the name."""
    train_and_save(tmp_path, 2)
    (tmp_path / "step-00000002").rename(tmp_path / ".step-00000002")  # complete, and not yet renamed
    shutil.copytree(tmp_path / ".step-00000002", tmp_path / ".gone-step-00000002")
    (tmp_path / ".step-00000003").mkdir()
    (tmp_path / ".step-00000003/model.safetensors").touch()  # torn
    ours = learner(Strategy("cpu", "fp32"))
    checkpoints = Checkpoints(tmp_path, BY_LOSS, 2)
    assert checkpoints.restore(ours, {}) == 2
    assert checkpoints.evaluated
    checkpoints.save(replace(ours, step=2), None, {})
    checkpoints.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
    checkpoints.restore(ours, {})
    assert not checkpoints.evaluated
