"""Hidden states that are cut along the sequence between the first block of a model and the last.

By the `context` dimension of a mesh, with sequence parallelism also by the `tensor` dimension. Embeddings, masks and the head see
whole sequences.
"""

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention

from snaketrain.models import Args, Kwargs, Value
from snaketrain.models.blocks import blocks
from snaketrain.strategies.shards import redistributed

# --- Attention over a sequence of which each rank of the `context` dimension has a piece, as an attention of transformers.
#
# `gather`: each rank collects all keys and values, for its own queries; for any number of heads. `ulysses`: ranks exchange pieces of the
# sequence for heads, attend with some heads to the whole sequence, and exchange back; less is sent, but heads must be divisible.

NAME = "snaketrain_context"  # among the attentions of transformers
HEADS, POSITION = 1, 2  # dimensions of queries, keys and values
POSITION_OF_HIDDEN = 1  # the dimension of hidden states that counts positions


class ContextAttention:
    def __init__(self, mesh: DeviceMesh, method: str, heads_divided_by: int):
        """`heads_divided_by`: the ranks of the tensor dimension, which have split the heads already."""
        self.mesh, self.method, self.heads_divided_by = mesh, method, heads_divided_by
        self.rank, self.calls = mesh.get_local_rank(), 0

    def replace(self, module: nn.Module) -> None:
        """Let the module attend by `forward`."""
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        if not getattr(module, "_supports_sdpa", False):  # what it has besides, such as caps of scores or sinks, would be lost
            raise SystemExit(
                f"train.strategy.arguments.context: the attention of {type(module).__name__} cannot be computed by PyTorch's "
                "scaled_dot_product_attention, which would replace it. Use `tensor`, `shard` or another model."
            )
        self.check_heads(module)
        AttentionInterface.register(NAME, self.forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        module.set_attn_implementation(NAME)  # type: ignore[operator]  # of transformers

    def check_heads(self, module: nn.Module) -> None:
        if self.method != "ulysses":
            return
        config: Value = module.config
        heads = config.num_attention_heads // self.heads_divided_by
        key_heads = (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) // self.heads_divided_by
        if heads % self.mesh.size() or (key_heads % self.mesh.size() and self.mesh.size() % key_heads):
            raise SystemExit(
                f"train.strategy.arguments.context: {self.mesh.size()} does not divide the {heads} heads of a rank (with {key_heads} of keys): "
                "use fewer ranks, or context_attention: gather."
            )

    # --- pieces

    def piece(self, whole: Tensor, dimension: int) -> Tensor:
        """This rank's."""
        return whole.chunk(self.mesh.size(), dimension)[self.rank]

    def gathered(self, piece: Tensor, dimension: int) -> Tensor:
        """The pieces of all ranks. Each rank's gradient counts, so their sum is cut again."""
        return redistributed(piece, self.mesh, Shard(dimension), Replicate()).to_local(grad_placements=[Partial()])

    def exchanged(self, tensor: Tensor, before: int, after: int) -> Tensor:
        """Cut in another dimension."""
        return redistributed(tensor, self.mesh, Shard(before), Shard(after)).to_local()

    def rows(self, mask: Tensor) -> Tensor:
        """What the queries of this rank see."""
        return self.piece(mask, POSITION) if self.method == "gather" else mask

    # --- attention

    def forward(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, sequence: object = None, **options: Value,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As transformers calls it. `sequence` is passed through the blocks of a model whose hidden states are cut."""
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if sequence is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        self.calls += 1
        causal = options.get("is_causal")
        causal = attention_mask is None and (causal if causal is not None else getattr(module, "is_causal", True))
        scale, dropout = options.get("scaling"), options.get("dropout", 0.0)
        return self.attend(query, key, value, attention_mask, causal, scale, dropout).transpose(1, 2).contiguous(), None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Value, causal: bool, scale: float | None, dropout: float) -> Tensor:
        if gathers := self.method == "gather":
            key, value = self.gathered(key, POSITION), self.gathered(value, POSITION)
            if causal:
                length = query.shape[POSITION]
                seen = (self.rank + 1) * length
                key, value, mask, causal = key[:, :, :seen], value[:, :, :seen], causal_lower_right(length, seen), False
        else:
            key, value = (_repeated(each, self.mesh.size()) for each in (key, value))
            query, key, value = (self.exchanged(each, POSITION, HEADS) for each in (query, key, value))
        key, value = (_repeated(each, query.shape[HEADS]) for each in (key, value))
        found = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale, is_causal=causal)
        return found if gathers else self.exchanged(found, HEADS, POSITION)


def _repeated(heads: Tensor, at_least: int) -> Tensor:
    """Keys or values, which several heads of queries may share, for each of so many."""
    times = at_least // heads.shape[HEADS]
    return heads.repeat_interleave(times, HEADS) if times > 1 else heads


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
        length = hidden.shape[POSITION_OF_HIDDEN]
        self.whole = Whole(length, -(-length // self.pieces) * self.pieces)
        hidden = pad(hidden, (0, 0, 0, self.whole.padded - length))
        if self.context:
            self.context.calls = 0
            hidden = self.context.piece(hidden, POSITION_OF_HIDDEN)
        if self.tensor:
            hidden = redistributed(hidden, self.tensor, Replicate(), Shard(POSITION_OF_HIDDEN)).to_local()
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
            hidden = redistributed(hidden, self.tensor, Shard(POSITION_OF_HIDDEN), Replicate()).to_local()
        if self.context and self.joins:
            hidden = self.context.gathered(hidden, POSITION_OF_HIDDEN)
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
        if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[POSITION_OF_HIDDEN] != whole.length:
            return value
        padding = [0, 0] * (value.ndim - 2) + [0, whole.padded - whole.length]
        value = pad(value, padding)
        return self.context.piece(value, POSITION_OF_HIDDEN) if self.context else value

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
