"""Trainings whose blocks are compiled by torch.compile, on the CPU: the losses and gradients of those that are not."""

import functools
import itertools
from typing import Any

import pytest
import torch
from distributed.test_strategies import brief, run
from torch import nn

from snaketrain.models.blocks import compile_blocks, recompute_activations

pytestmark = pytest.mark.slow

ALONE = ("lm",)  # whose activations are recomputed
TOGETHER: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ddp": ("ddp", "bert", {}),
    "fsdp, recomputed": ("fsdp", "lm", {}),
    "ulysses": ("mesh", "llama", {"context": 2, "context_attention": "ulysses"}),
    "pipeline": ("mesh", "deep", {"pipeline": 2}),
}


@pytest.fixture
def traced_only(monkeypatch) -> None:
    """Here it is about what is compiled, not by what. And trainings that are forked from this process do not begin with libraries that are loaded."""
    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend="aot_eager"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    jobs = {f"{name} True": ("trained", brief("single", name, compile=True)) for name in ALONE}
    jobs |= {f"{name} False": ("trained", brief("single", name)) for name in ("bert", "lm", "llama", "deep")}
    return run(tmp_path_factory.mktemp("compiled"), 1, jobs)


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> dict[str, Any]:
    """Only ddp's blocks go through the C++ compiler, which takes most of a minute for each; the others run the traced graphs."""
    jobs = {}
    for name, (strategy, model, arguments) in TOGETHER.items():
        backend, pieces = "inductor" if strategy == "ddp" else "aot_eager", arguments.get("pipeline", 1)
        jobs[name] = "trained", brief(strategy, model, None, arguments, compile=True, accumulate=pieces, compile_backend=backend)
    return run(tmp_path_factory.mktemp("compiled"), 2, jobs, forked=False)


def test_blocks_that_are_recomputed_are_compiled_as_well(traced_only):
    from torch._dynamo.utils import counters

    blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 2)) for _ in range(2)])
    module = nn.Module()
    module.blocks = blocks
    recompute_activations(module)
    compile_blocks(module, torch.device("cpu"))
    counters.clear()
    blocks[1](blocks[0](torch.ones(1, 2, requires_grad=True))).sum().backward()
    assert counters["frames"]["ok"] == 1  # which the blocks share
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_no_variant_of_a_block_is_left_uncompiled(traced_only):
    """An encoder and a decoder, in training and evaluation, with and without padding, of one length and of any: more than torch's limit."""
    from torch._dynamo.utils import counters
    from transformers import BartConfig, BartForSequenceClassification

    size = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = BartConfig(d_model=16, vocab_size=20, encoder_ffn_dim=16, decoder_ffn_dim=16, **size)
    torch._dynamo.reset()
    model = BartForSequenceClassification(config)
    compile_blocks(model, torch.device("cpu"))
    counters.clear()
    for train, padded, length in itertools.product((True, False), (False, True), (5, 7)):
        tokens = torch.full((3, length), 5)
        tokens[:, -1] = config.eos_token_id
        mask = torch.ones_like(tokens)
        mask[0, 0] = 0 if padded else 1
        with torch.set_grad_enabled(train):
            model.train(train)(input_ids=tokens, attention_mask=mask)
    assert counters["frames"]["total"] > 8
    assert counters["frames"]["ok"] == counters["frames"]["total"]


@pytest.mark.parametrize("model", ALONE)
def test_compiled_blocks_train_as_others(alone, model):
    found, expected = alone[f"{model} True"], alone[f"{model} False"]
    assert_compiled(found)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)


@pytest.mark.parametrize("name", TOGETHER)
def test_compiled_blocks_train_as_others_on_two_processes(together, alone, name):
    """Other points of a mesh are refused: see `compile_error`."""
    found, expected = together[name], alone[f"{TOGETHER[name][1]} False"]
    assert_compiled(found)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)


def assert_compiled(found: dict[str, Any]) -> None:
    compiled, met = found["compiled"]
    assert compiled == met > 0
