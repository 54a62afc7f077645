"""What torch.compile lacks is said before the first step; tests/slow/test_compiling.py trains with it."""

import sysconfig
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from snaketrain.models.blocks import compile_blocks

CPU = torch.device("cpu")


def test_a_missing_compiler_is_named(tmp_path):
    from torch._inductor import config

    with (
        config.patch({"cpp.cxx": (str(tmp_path / "no-compiler"),)}),
        pytest.raises(SystemExit, match=r"train.compile: needs a C\+\+ compiler, such as g\+\+ .* and finds none"),
    ):
        compile_blocks(nn.Linear(2, 2), CPU)


def test_missing_headers_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(SystemExit, match=r"train.compile: needs Python's headers \(.*Python.h"):
        compile_blocks(nn.Linear(2, 2), CPU)


def test_a_gpu_without_triton_is_refused(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(SystemExit, match="train.compile: needs triton, and a GPU of compute capability 7.0"):
        compile_blocks(nn.Linear(2, 2), torch.device("cuda", 0))


def test_no_block_keeps_keys_and_values_for_which_it_would_be_compiled_again():
    module = nn.Linear(2, 2)
    module.config = SimpleNamespace(use_cache=True)
    compile_blocks(module, CPU)
    assert not module.config.use_cache


def test_each_block_is_compiled_by_itself():
    blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    module = nn.Sequential(nn.Linear(2, 2), blocks)
    compile_blocks(module, CPU)
    assert [part._compiled_call_impl is not None for part in (module, module[0], *blocks)] == [False, False, True, True]
