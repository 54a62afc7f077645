"""Hidden states that are cut along the sequence between the first block of a model and the last.

By the `context` dimension of a mesh, with sequence parallelism also by the `tensor` dimension. Embeddings, masks and the head see
whole sequences.
"""

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.functional import pad

from snaketrain.models.blocks import blocks
from snaketrain.models.call_types import Args, Kwargs, Value
from snaketrain.strategies.context_attention import ContextAttention

POSITION = 1  # the dimension of hidden states that counts positions
HIDDEN = "hidden_states"  # the argument of a block that is cut
SETTING = "train.strategy.arguments"


@dataclass(frozen=True)
class Whole:
    """A sequence before it is cut, padded so that all pieces have one length."""

    length: int
    padded: int


class SequenceDimension:
    """`tensor`: the mesh of sequence parallelism. `cut_logits`: pieces are not joined again, since the loss takes them as they are."""

    def __init__(self, context: ContextAttention | None, tensor: DeviceMesh | None, cut_logits: bool = False):
        self.context, self.tensor, self.joins = context, tensor, not (cut_logits and context)
        self.pieces = (context.mesh.size() if context else 1) * (tensor.size() if tensor else 1)
        self.setting = f"{SETTING}.{'context' if context else 'sequence_parallel'}"
        self.whole: Whole | None = None  # of the batch whose forward pass is under way

    def apply(self, module: nn.Module) -> nn.Module:
        found, config = blocks(module), getattr(module, "config", None)
        self.names = [name for name in inspect.signature(type(found[0]).forward).parameters if name != "self"] if found else []
        if HIDDEN not in self.names or config is None or getattr(config, "is_encoder_decoder", False):
            raise SystemExit(
                f"{self.setting}: needs a transformers model of one list of blocks, which {type(module).__name__} is not. Leave it out, or name another model."
            )
        self.causal = any(getattr(part, "is_causal", False) for part in found[0].modules())
        config.use_cache = False  # unless it is asked for, to generate: a model that keeps keys and values gets whole sequences
        if self.context:
            self.context.replace(module)
        found[0].register_forward_pre_hook(self._cut, with_kwargs=True)
        for block in found:
            block.register_forward_pre_hook(self._cut_arguments, with_kwargs=True)
        found[-1].register_forward_hook(self._join)
        return module

    # --- around the blocks

    def _cut(self, block: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        given = self._named(args, kwargs)
        if given.get("past_key_values") is not None:  # text is generated
            if torch.is_grad_enabled():  # otherwise each rank would compute the whole sequence without a word
                raise SystemExit(f"{self.setting}: train.task keeps keys and values while it trains. Call the model with use_cache=False.")
            if self.tensor:
                raise SystemExit(f"{SETTING}.sequence_parallel: cannot generate text. Remove it, or train.task.arguments.generate.")
            self.whole = None
            return args, kwargs
        hidden: Tensor = given[HIDDEN]
        length = hidden.shape[POSITION]
        self.whole = Whole(length, -(-length // self.pieces) * self.pieces)
        hidden = pad(hidden, (0, 0, 0, self.whole.padded - length))
        if self.context:
            self.context.calls = 0
            hidden = self.context.piece(hidden, POSITION)
        if self.tensor:
            hidden = DTensor.from_local(hidden, self.tensor, [Replicate()], run_check=False).redistribute(placements=[Shard(1)]).to_local()
        return (), given | {HIDDEN: hidden}

    def _cut_arguments(self, block: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """What blocks get besides hidden states: each rank needs that of the positions on which its attention works."""
        if self.whole is None:
            return args, kwargs
        given = self._named(args, kwargs)
        hidden = given.pop(HIDDEN)
        cut = {name: self._fitting(name, value, self.whole) for name, value in given.items()}
        cut["attention_mask"] = self._mask(given.get("attention_mask"), self.whole, hidden.device)
        if self.context:
            cut["sequence"] = self.whole
        return (hidden,), cut

    def _join(self, block: nn.Module, args: Args, output: Value) -> Value:
        """Whole sequences again, as the head of the model expects them."""
        if self.whole is None:
            return output
        if self.context and not self.context.calls:
            raise SystemExit(f"{self.setting}: the attention of {type(block).__name__} cannot be replaced. Use another model, or `tensor`.")
        hidden = output[0] if isinstance(output, tuple) else output
        if self.tensor:
            hidden = DTensor.from_local(hidden, self.tensor, [Shard(1)], run_check=False).redistribute(placements=[Replicate()]).to_local()
        if self.context and self.joins:
            hidden = self.context.gathered(hidden, POSITION)
        if self.joins:
            hidden = hidden[:, : self.whole.length]
        if hidden._is_view():  # FSDP2's hook at the end of a block would be lost if a model changed it in place
            hidden = hidden.clone()
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    # --- arguments of a block

    def _named(self, args: Args, kwargs: Kwargs) -> Kwargs:
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def _fitting(self, name: str, value: Value, whole: Whole) -> Value:
        if name in ("attention_mask", "past_key_values"):
            return value
        if isinstance(value, tuple):  # such as the cosines and sines of rotary embeddings
            return tuple(self._fitting(name, each, whole) for each in value)
        if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[POSITION] != whole.length:
            return value
        padding = [0, 0] * (value.ndim - 2) + [0, whole.padded - whole.length]
        value = pad(value, padding)
        return self.context.piece(value, POSITION) if self.context else value

    def _mask(self, mask: Tensor | None, whole: Whole, device: torch.device) -> Tensor | None:
        """The mask of (batch, 1, query, key): positions that were added see all, and nothing sees them."""
        more = whole.padded - whole.length
        if mask is None and (not more or self.causal):
            return None
        if mask is None:
            mask = torch.ones(1, 1, whole.length, whole.length, dtype=torch.bool, device=device)
        if mask.ndim != 4:
            raise SystemExit(f"{self.setting}: needs model.arguments.attn_implementation: sdpa.")
        if mask.dtype == torch.bool:
            mask = pad(pad(mask, (0, more), value=False), (0, 0, 0, more), value=True)
        else:
            mask = pad(pad(mask, (0, more), value=torch.finfo(mask.dtype).min), (0, 0, 0, more), value=0.0)
        return self.context.rows(mask) if self.context else mask
