"""Attention over a sequence of which each rank of the `context` dimension has a piece, as an attention of transformers.

`gather`: each rank collects all keys and values, for its own queries; for any number of heads. `ulysses`: ranks exchange pieces of the
sequence for heads, attend with some heads to the whole sequence, and exchange back; less is sent, but heads must be divisible.
"""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from snaketrain.models.call_types import Value

NAME = "snaketrain_context"  # among the attentions of transformers
HEADS, POSITION = 1, 2  # dimensions of queries, keys and values


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
        whole = DTensor.from_local(piece, self.mesh, [Shard(dimension)], run_check=False).redistribute(placements=[Replicate()])
        joined: Tensor = whole.to_local(grad_placements=[Partial()])
        return joined

    def exchanged(self, tensor: Tensor, before: int, after: int) -> Tensor:
        """Cut in another dimension."""
        found: Tensor = (
            DTensor.from_local(tensor, self.mesh, [Shard(before)], run_check=False).redistribute(placements=[Shard(after)]).to_local()
        )
        return found

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
            whole: tuple[Tensor, Tensor | None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
            return whole
        self.calls += 1
        causal = options.get("is_causal")
        causal = attention_mask is None and (causal if causal is not None else getattr(module, "is_causal", True))
        scale, dropout = options.get("scaling"), options.get("dropout", 0.0)
        attend = self.by_gathering if self.method == "gather" else self.by_exchanging
        return attend(query, key, value, attention_mask, causal, scale, dropout).transpose(1, 2).contiguous(), None

    def by_gathering(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None, dropout: float
    ) -> Tensor:
        key, value = self.gathered(key, POSITION), self.gathered(value, POSITION)
        bias: Value = mask
        if causal:
            length = query.shape[POSITION]
            seen = (self.rank + 1) * length
            key, value, bias = key[:, :, :seen], value[:, :, :seen], causal_lower_right(length, seen)
        return _attention(query, key, value, bias, False, scale, dropout)

    def by_exchanging(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None, dropout: float
    ) -> Tensor:
        if key.shape[HEADS] < self.mesh.size():
            times = self.mesh.size() // key.shape[HEADS]
            key, value = key.repeat_interleave(times, HEADS), value.repeat_interleave(times, HEADS)
        query, key, value = (self.exchanged(each, POSITION, HEADS) for each in (query, key, value))
        return self.exchanged(_attention(query, key, value, mask, causal, scale, dropout), HEADS, POSITION)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Value, causal: bool, scale: float | None, dropout: float) -> Tensor:
    times = query.shape[HEADS] // key.shape[HEADS]
    if times > 1:
        key, value = key.repeat_interleave(times, HEADS), value.repeat_interleave(times, HEADS)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale, is_causal=causal)
