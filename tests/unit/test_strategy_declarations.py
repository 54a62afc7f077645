"""Strategies, also a user's own, declare their requirements in class attributes that are read from their files."""

import subprocess
import sys
from pathlib import Path

import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.schema import Compute, Settings
from snaketrain.orchestration import launching
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.preflight import examine
from snaketrain.orchestration.strategy_declarations import StrategyInfo, strategy_errors, strategy_files, strategy_info
from snaketrain.runtime.stages import JobSettings
from snaketrain.strategies import make_strategy

OWN = """
from torch import nn  # noqa: E402

from snaketrain.strategies import distributed, mesh
from snaketrain.strategies.ddp import Ddp
from snaketrain.strategies.fairscale import FairscaleFsdp
from snaketrain.strategies.ddp import Single# noqa: E402
from snaketrain.strategies import distributed, mesh
from snaketrain.strategies.ddp import Ddp, Single
from snaketrain.strategies.fairscale import FairscaleFsdp


class Rings(Ddp):
    devices = ("cpu",)
    degrees = {"ring": "data_parallel"}

    def __init__(self, ring: int = 1, **options):
        super().__init__(**options)
        self.ring = ring


class OnGpus(distributed.Distributed):
    devices: tuple[str, ...] = ("cuda",)


class Heir(FairscaleFsdp):
    pass


class Alone(Single):
    pass


class Stages(mesh.TensorParallel):
    degrees = {"stages": "model_parallel"}
    data_parallel_arguments = ()

    def __init__(self, stages: int | None = None, **options):
        super().__init__(**options)


class Computed(Ddp):
    devices = tuple(["cpu"])


class Misspelt(Ddp):
    devices = ("gpu",)


class OfALibrary(nn.Module):
    pass
"""
ONE_PROCESS = "runs in one process, but compute.processes is 2: use `ddp` or `auto`"
TAKES_ALL = "times train.accumulate (5) is more than a batch has examples"
# class, arguments, other settings, and what is said
CASES = [
    ("Rings", {"ring": 2}, {"processes": 4}, None),
    ("Rings", {"ring": 3}, {"processes": 4}, "train.strategy.arguments.ring is 3, which does not divide compute.processes (4)"),
    (
        "Rings",
        {"ring": 4},
        {"nodes": "1-4", "threads": 4},
        "which does not divide compute.processes (1): the processes are arranged in groups",
    ),
    ("Rings", {}, {"device": "cuda"}, "runs only on CPUs, but compute.device is cuda: set it to cpu"),
    ("OnGpus", {}, {"processes": 2}, None),
    ("OnGpus", {}, {"device": "cpu"}, "needs GPUs, but compute.device is cpu: use `fsdp`"),
    ("Heir", {}, {"processes": 2, "device": "cpu"}, "needs GPUs, but compute.device is cpu: use `fsdp`"),
    ("Alone", {}, {}, None),
    ("Alone", {}, {"processes": 2}, ONE_PROCESS),
    ("Stages", {}, {"processes": 8}, None),  # all work on the same examples
    ("Stages", {"stages": 4}, {"processes": 8}, TAKES_ALL),
    ("Rings", {}, {"processes": 8}, TAKES_ALL),
    ("Computed", {}, {}, "computes `devices`, which is read without running the code"),
    ("Misspelt", {}, {}, "declares `devices` as ('gpu',): Input should be 'cpu' or 'cuda'"),
    ("OfALibrary", {}, {"processes": 2}, None),  # nothing is known, so nothing is refused
]


@pytest.fixture
def own(tmp_path, monkeypatch, tiny_tokenizer):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"film {i},{i % 2}\n" for i in range(40)))
    (tmp_path / "tokenizer").symlink_to(tiny_tokenizer)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own.py"


@pytest.mark.parametrize(("name", "arguments", "compute", "message"), CASES)
def test_processes_and_devices_are_checked_by_the_declarations_of_a_users_own_strategy(own, name, arguments, compute, message):
    strategy = {"use": f"{own}:{name}", "arguments": arguments}
    config = {
        "data": {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}},
        "model": {"use": "transformers.BertForSequenceClassification"},
        "train": {"strategy": strategy, "batch_size": 9, "accumulate": 5 if message == TAKES_ALL else 1},
        "compute": compute,
    }
    if message is None:
        assert list(examine(config)) == ["default"]
        return
    with pytest.raises(ConfigurationError) as error:
        examine(config)
    (problem,) = error.value.problems
    assert message in problem
    assert problem.endswith(". (run default)")


def test_declarations_of_our_own_strategies():
    everywhere = ("cpu", "cuda")
    tested = ("single", "ddp", "auto", "fsdp")
    for name in ("single", "data_parallel"):
        assert strategy_info(name) == StrategyInfo(multi_process=False, devices=everywhere, trains_adapters=name in tested)
    for name in ("ddp", "zero1", "fairscale_oss", "auto"):
        assert strategy_info(name) == StrategyInfo(multi_process=True, devices=everywhere, trains_adapters=name in tested)
    for name in ("fsdp", "hsdp", "tensor_parallel", "fairscale_fsdp"):
        assert strategy_info(name).trains_adapters == (name in tested)
    assert [name for name in ("ddp", "fsdp", "hsdp", "tensor_parallel", "fairscale_fsdp") if strategy_info(name).shards_model] == [
        "fsdp",
        "hsdp",
        "tensor_parallel",
        "fairscale_fsdp",
    ]
    assert strategy_info("fairscale_fsdp").devices == ("cuda",)
    assert [strategy_info("hsdp").data_parallel_size({"shard": 2}, 4), strategy_info("ddp").data_parallel_size({}, 4)] == [4, 4]
    mesh = strategy_info("mesh")
    assert (mesh.shards_model, mesh.trains_adapters, mesh.degrees_fill_mesh) == (True, False, True)
    assert [mesh.data_parallel_size(given, 8) for given in ({}, {"tensor": 2}, {"tensor": 2, "context": 2, "replicate": 2})] == [8, 4, 2]
    assert [strategy_info("tensor_parallel").data_parallel_size(given, 4) for given in ({}, {"tensor": 2})] == [1, 2]


def test_declarations_are_read_without_torch(own):
    """What the workflow imports must be light, and a user's file may import anything."""
    code = (
        "import sys; from snaketrain.orchestration.strategy_declarations import strategy_info\n"
        f"print(strategy_info('tensor_parallel').degrees, strategy_info('{own}:Heir').devices, 'torch' in sys.modules)"
    )
    scripts = Path(__file__).parents[2] / "workflow/scripts"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(scripts)})
    assert done.stdout.split("\n")[0] == "{'tensor': 'model_parallel'} ('cuda',) False", done.stderr


def test_a_job_without_gpus_is_not_submitted_for_a_strategy_that_needs_them(own):
    assert "needs GPUs, but compute.gpus is 0" in launching.without_gpus(f"{own}:OnGpus", Compute(), "slurm-steady", None)


@pytest.mark.parametrize("use", ["fairscale_fsdp", "{own}:OnGpus"])
def test_a_strategy_that_needs_gpus_refuses_to_start_on_a_cpu(own, use):
    with pytest.raises(SystemExit) as error:
        make_strategy(use.format(own=own), {}, device="cpu", precision="fp32")
    assert str(error.value).endswith("needs GPUs, and the device is cpu: use `fsdp`, which needs none.")


def test_a_users_strategy_is_part_of_the_trainings_code(own):
    assert strategy_files(f"{own}:Heir") == [own]
    assert [file.name for file in strategy_files("auto")] == ["ddp.py"]


@pytest.mark.parametrize(
    ("strategy", "train", "where"),
    [
        ("fsdp", {"optimizer": "torch.optim.Adafactor"}, "train.optimizer.use: torch.optim.Adafactor"),
        (
            "mesh",
            {"groups": [{"match": "*", "optimizer": {"use": "torch.optim.Rprop"}}]},
            "train.groups.0.optimizer.use: torch.optim.Rprop",
        ),
        ("zero1", {"optimizer": "torch.optim.Adafactor"}, None),
        ("fsdp", {"optimizer": "torch.optim.Muon"}, None),
    ],
)
def test_optimizers_that_need_whole_parameters_are_refused_where_they_are_split(strategy, train, where):
    data = {"train": {"path": "a"}, "tokenizer": {"path": "b"}}
    run = Settings.model_validate({"data": data, "compute": {"processes": 2}, "train": {"strategy": strategy, **train}})
    message = f"{where} needs whole parameters, which train.strategy `{strategy}` splits"
    assert [error.startswith(message) for error in strategy_errors(run)] == [True] * bool(where)


TENSOR = "train.compile: torch 2.13 cannot compile matrices that train.strategy.arguments.tensor splits"


@pytest.mark.parametrize(
    ("use", "arguments", "message"),
    [
        ("mesh", {"tensor": 2, "sequence_parallel": True}, TENSOR),
        ("mesh", {"tensor": 2, "shard": 2}, TENSOR),
        ("tensor_parallel", {}, TENSOR),
        ("mesh", {"context": 2}, "train.compile: torch 2.13 cannot compile train.strategy.arguments.context_attention: gather"),
        ("mesh", {"pipeline": 2, "expert": 2}, "train.compile: was not tried with train.strategy"),
        ("mesh", {"pipeline": 2, "schedule": "zbv"}, "train.compile: fails in torch 2.13 with train.strategy.arguments.schedule: zbv"),
        ("mesh", {"pipeline": 2, "schedule": "interleaved"}, None),
        ("mesh", {"context": 2, "context_attention": "ulysses"}, None),
        ("hsdp", {"shard": 2}, None),
    ],
)
def test_compiling_is_refused_where_it_fails(use, arguments, message):
    data = {"train": {"path": "a"}, "tokenizer": {"path": "b"}}
    train = {"compile": True, "accumulate": 4, "strategy": {"use": use, "arguments": arguments}}
    run = Settings.model_validate({"data": data, "compute": {"processes": 4}, "train": train})
    assert [error.startswith(message or "") for error in strategy_errors(run)] == [True] * bool(message)


def test_single_is_what_auto_is_with_one_process():
    """So that an edit from one to the other reruns nothing, in any stage; other strategies are told apart, and processes never count."""

    def compared(strategy: str, processes: int = 1) -> list[JobSettings]:
        data = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}
        config = {"data": data, "train": {"strategy": strategy}, "compute": {"processes": processes}}
        pipeline = Pipeline(config, reads_files=False)
        return [pipeline.stages[stage].planned("default") for stage in ("train_model", "select_checkpoint", "evaluate_model")]

    assert compared("single") == compared("auto") == compared("auto", processes=2)
    assert compared("ddp") != compared("auto")
