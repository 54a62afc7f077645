"""Logits that are cut over ranks until the loss is known: with a large vocabulary, or long sequences, they are the largest tensor."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from snaketrain.models.call_types import Args
from snaketrain.strategies.sequence import SequenceDimension

SETTING = "train.strategy.arguments.loss_parallel"


class CutLogits:
    """By `tensor` ranks along the vocabulary, by `context` ranks along the sequence. `models.token_losses` takes them so; evaluations
    get whole ones."""

    def __init__(self, mesh: DeviceMesh, sequence: SequenceDimension | None):
        """`mesh`: of those of the dimensions `context` and `tensor` that there are."""
        self.mesh, self.sequence = mesh, sequence

    def apply(self, module: nn.Module) -> nn.Module:
        head = output_head(module)
        assert isinstance(head.weight, Tensor)
        self.vocabulary = head.weight.shape[0]
        head.register_forward_hook(self._cut)
        return module

    def _cut(self, head: nn.Module, args: Args, output: Tensor) -> Tensor:
        local = output.to_local() if isinstance(output, DTensor) else output
        whole = self.sequence.whole if self.sequence and not self.sequence.joins else None
        along = {"context": Shard(1) if whole else Replicate(), "tensor": Shard(2)}
        shape = torch.Size((local.shape[0], whole.padded if whole else local.shape[1], self.vocabulary))
        stride = (shape[1] * shape[2], shape[2], 1)
        placements = [along[name] for name in self.mesh.mesh_dim_names or ()]
        logits = DTensor.from_local(local, self.mesh, placements, run_check=False, shape=shape, stride=stride)
        if torch.is_grad_enabled():
            return logits
        return logits.full_tensor()[:, : whole.length if whole else None]


def output_head(module: nn.Module) -> nn.Module:
    """The layer that predicts tokens."""
    head = getattr(module, "get_output_embeddings", lambda: None)()
    if head is None:
        raise SystemExit(f"{SETTING}: {type(module).__name__} does not predict tokens, so there are no large logits to cut. Remove it.")
    assert isinstance(head, nn.Module)
    return head
