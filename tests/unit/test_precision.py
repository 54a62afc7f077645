"""The precision of `auto`: bf16 if the devices of all processes support it."""

from argparse import Namespace
from typing import Any

import pytest
import torch

from snaketrain.config.schema import Evaluate, Model, Train
from snaketrain.evaluation.scoring import Scoring
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.stages import JobSettings
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.distributed import Distributed
from snaketrain.strategies.fsdp import Fsdp
from snaketrain.strategies.shards import ShardedScaler
from snaketrain.training import building, execution


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with or without bf16; torch reports bf16 for all GPUs, since it emulates it."""
    able = {"bf16": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or able["bf16"])
    return able


@pytest.mark.parametrize(("bf16", "expected"), [(True, "bf16"), (False, "fp16")])
def test_auto_on_a_gpu(gpu, bf16, expected):
    gpu["bf16"] = bf16
    for strategy in (Strategy(), Fsdp()):
        assert (strategy.device.type, strategy.precision) == ("cuda", expected)
        assert strategy.scaler.is_enabled() == (expected == "fp16")
    assert isinstance(Fsdp().scaler, ShardedScaler)


def test_a_given_precision_is_used_and_auto_is_fp32_on_a_cpu(gpu):
    assert Strategy(precision="fp16").precision == "fp16"
    assert Strategy(device="cpu").precision == "fp32"


@pytest.mark.parametrize(("others", "expected"), [("bf16", "bf16"), ("fp16", "fp16")])
def test_processes_on_different_gpus_use_the_same_precision(monkeypatch, gpu, others, expected):
    class OfTwo(Distributed):
        def all_gather_object(self, item: Any) -> list[Any]:
            return [item, others]

    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name, found in {"is_initialized": True, "get_rank": 0, "get_world_size": 2}.items():
        monkeypatch.setattr(torch.distributed, name, lambda found=found: found)
    strategy = OfTwo()
    strategy.start()
    assert strategy.precision == expected
    assert strategy.scaler.is_enabled() == (expected == "fp16")


class Chosen(Exception):
    """The precision with which a strategy was requested."""


def test_an_evaluation_uses_the_precision_of_the_training(monkeypatch, tmp_path):
    """Not with what `auto` means on the machine on which it runs."""
    settings = {"train": Train().as_json, "model": Model(use="torch.nn.Linear").as_json}
    training = Manifest("train_model", "x", settings, {}, {}, {"precision": "bf16"})

    def ask(*_: Any, precision: str, **__: Any) -> None:
        raise Chosen(precision)

    monkeypatch.setattr(building, "make_strategy", ask)
    with pytest.raises(Chosen, match="bf16"):
        given = JobSettings("evaluate_model", {"evaluate": Evaluate().as_json}, {})
        Scoring(Namespace(device="cpu"), given, training, training, None).score(tmp_path, {}, [], "small")


@pytest.mark.parametrize(
    ("described", "known"), [("flags\t\t: fpu avx512f avx512_bf16", True), ("flags\t\t: fpu avx512f", False), ("model name: bf16", False)]
)
def test_what_bf16_would_give_is_measured_where_a_cpu_has_instructions_for_it(monkeypatch, described, known):
    monkeypatch.setattr(execution, "_described_cpus", lambda: [described])
    gain = execution.gain_of_bf16()
    assert gain is not None and gain > 0 if known else gain is None
