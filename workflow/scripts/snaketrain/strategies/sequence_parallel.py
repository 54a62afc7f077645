"""Sequence parallelism: between split matrices, each rank of the `tensor` dimension works on a piece of the sequence.

What is not split, such as norms and residuals, is then neither computed nor kept by every rank.
"""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from snaketrain.models.blocks import blocks
from snaketrain.models.call_types import Args, Kwargs

SETTING = "train.strategy.arguments.sequence_parallel"


def within_blocks(module: nn.Module, styles: dict[str, ParallelStyle], mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """The styles, changed inside of blocks so that these exchange pieces of the sequence."""
    of_blocks = {id(part) for block in blocks(module) for part in block.modules()}
    inside = {name: part for name, part in module.named_modules() if id(part) in of_blocks}
    gathering = {name.rpartition(".")[0] for name, style in styles.items() if name in inside and isinstance(style, ColwiseParallel)}
    for name in gathering:
        inside[name].register_forward_pre_hook(lambda part, args, kwargs: gather_hidden(args, kwargs, mesh), with_kwargs=True)
    found = dict(styles)
    for name, part in inside.items():
        if isinstance(style := styles.get(name), RowwiseParallel):
            found[name] = RowwiseParallel(input_layouts=style.input_layouts[0], output_layouts=Shard(1))
        elif style is None and any(True for _ in part.parameters(recurse=False)):
            if any(name.startswith(f"{each}.") for each in gathering):
                raise SystemExit(f"{SETTING}: the plan does not say how `{name}` is split. Add it to train.strategy.arguments.plan.")
            found[name] = SequenceParallel(use_local_output=True)
    return found


def gather_hidden(args: Args, kwargs: Kwargs, mesh: DeviceMesh) -> tuple[Args, Kwargs]:
    """The input of a module with split matrices: the sequence of all pieces."""
    if "hidden_states" in kwargs:
        return args, kwargs | {"hidden_states": _whole(kwargs["hidden_states"], mesh)}
    return (_whole(args[0], mesh), *args[1:]), kwargs


def _whole(piece: Tensor, mesh: DeviceMesh) -> DTensor:
    # a DTensor, so that the gradients of all matrices are added before they are reduced and cut at once
    return DTensor.from_local(piece, mesh, [Shard(1)], run_check=False).redistribute(placements=[Replicate()])
