"""Lets fairscale's FullyShardedDataParallel run without a GPU, for tests: its CUDA streams are replaced by stand-ins, since a CPU has one stream.

Everything else is fairscale's code: parameters are sharded, gathered and freed, and gradients reduced, over gloo.
"""

import os
import types

os.environ["ENABLE_NCCL_BASE_COLLECTIVES"] = "0"  # fairscale reads it when it is imported: gloo can only reduce lists

import fairscale.nn.data_parallel.fully_sharded_data_parallel as theirs
import torch

from snaketrain.strategies.fairscale import FairscaleFsdp

ONE = torch.cpu.Stream()
NO_CUDA = types.SimpleNamespace(
    Stream=torch.cpu.Stream, is_available=lambda: False, current_stream=lambda: ONE, stream=torch.cpu.stream, synchronize=lambda: None
)


class TorchOnCpu(types.ModuleType):
    """torch as fairscale's module sees it, with streams that do nothing."""

    cuda = NO_CUDA

    def __getattr__(self, name):
        return getattr(torch, name)


def install() -> None:
    theirs.torch = TorchOnCpu("torch")
    theirs.FullyShardedDataParallel._setup_streams = with_streams(theirs.FullyShardedDataParallel._setup_streams)
    torch.Tensor.record_stream = lambda tensor, stream: None
    torch.Tensor.cuda = lambda tensor, *_: tensor  # the norm of its gradients
    FairscaleFsdp.devices = ("cpu",)


def with_streams(set_up):
    def setting_up(self):
        set_up(self)
        if self._is_root:
            self._streams.update(dict.fromkeys(("fp32_to_fp16", "all_gather", "post_backward"), ONE))  # one dictionary for all parts

    return setting_up
