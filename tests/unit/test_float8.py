"""Products in float8: which layers, and machines that do not have them. torchao itself is not installed here: a stand-in takes its place."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from snaketrain.config.schema import Settings
from snaketrain.models.blocks import use_float8
from snaketrain.orchestration.strategy_declarations import strategy_errors
from snaketrain.strategies.base import Strategy

GPU = torch.device("cuda", 0)
RUN = {"data": {"train": {"path": "a"}, "tokenizer": {"path": "b"}}, "compute": {"processes": 2}}


def llama(intermediate_size: int = 64) -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32}
    return LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=intermediate_size))


class Float8Linear(nn.Linear):
    """As torchao's, it has the parameters of the layer that it replaces."""


@dataclass
class Float8LinearConfig:
    pad_inner_dim: bool = False


def convert_to_float8_training(
    module: nn.Module, *, module_filter_fn: Callable[[nn.Module, str], bool], config: Float8LinearConfig
) -> nn.Module:
    assert config.pad_inner_dim, "texts have any number of tokens, and the GPU's products only multiples of 16"
    for name, part in list(module.named_modules()):
        if isinstance(part, nn.Linear) and module_filter_fn(part, name):
            part.__class__ = Float8Linear
    return module


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that has such products, and torchao."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    float8 = ModuleType("torchao.float8")
    float8.convert_to_float8_training, float8.Float8LinearConfig = convert_to_float8_training, Float8LinearConfig
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", float8)


def test_only_linear_layers_of_blocks_with_fitting_sizes_compute_in_float8(hopper):
    model = llama(intermediate_size=40)  # not divisible by 16
    parameters = dict(model.named_parameters())
    use_float8(model, GPU)
    found = {name for name, part in model.named_modules() if isinstance(part, Float8Linear)}
    assert found == {f"model.layers.{layer}.self_attn.{each}_proj" for layer in (0, 1) for each in "qkvo"}
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())


def test_a_model_without_such_layers_is_refused(hopper):
    with pytest.raises(SystemExit, match="train.precision: is fp8, but no linear layer of its blocks has sizes divisible by 16"):
        use_float8(nn.Sequential(nn.Linear(32, 32)), GPU)


def test_a_cpu_is_refused():
    with pytest.raises(SystemExit, match="train.precision: is fp8, but only GPUs multiply such matrices. Set it to bf16."):
        use_float8(llama(), torch.device("cpu"))


def test_an_older_gpu_and_a_missing_package_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    monkeypatch.setitem(sys.modules, "torchao", None)
    for capability, message in (((8, 0), "but A100 does not multiply such matrices"), ((9, 0), "but torchao is not installed")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        with pytest.raises(SystemExit, match=message):
            use_float8(llama(), GPU)


def test_split_matrices_are_refused_before_any_job():
    for strategy in ("tensor_parallel", {"use": "mesh", "arguments": {"tensor": 2}}):
        run = Settings.model_validate(RUN | {"train": {"strategy": strategy, "precision": "fp8"}})
        assert [error for error in strategy_errors(run) if "fp8 was not tried with matrices that" in error]
    assert not list(strategy_errors(Settings.model_validate(RUN | {"train": {"strategy": "fsdp", "precision": "fp8"}})))


def test_all_else_is_computed_as_in_bf16():
    """Also an evaluation of the trained weights, on any machine."""
    with Strategy(device="cpu", precision="fp8").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
