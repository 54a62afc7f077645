"""Probes what tokens attend to in a language model: not every transformers class is causal, or separates packed texts."""

import torch
from torch import Tensor, nn

HALF = 6  # tokens


def sees_later_tokens(model: nn.Module) -> bool:
    """Whether the last token changes earlier predictions: such a model would only learn to copy."""
    return _differ(model, changed=-1, seen=slice(0, -1), position_ids=None)


def sees_other_texts(model: nn.Module) -> bool:
    """Whether the first text of a row changes predictions in the second, although `position_ids` separate them."""
    return _differ(model, changed=0, seen=slice(HALF, None), position_ids=torch.arange(HALF).repeat(2)[None])


def vocabulary_size(model: nn.Module) -> int:
    """The number of tokens that the model predicts among; 0 if it does not predict tokens."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return 0 if head is None else len(head.weight)


@torch.no_grad()
def _differ(model: nn.Module, changed: int, seen: slice, position_ids: Tensor | None) -> bool:
    """Whether the logits at the `seen` positions depend on the token at the `changed` one."""
    tokens = torch.arange(2 * HALF, device=next(model.parameters()).device)[None] % vocabulary_size(model)
    others = tokens.clone()
    others[0, changed] = (others[0, changed] + 1) % vocabulary_size(model)
    training = model.training
    model.eval()
    given = {} if position_ids is None else {"position_ids": position_ids.to(tokens.device)}
    first, second = (model(input_ids=ids, use_cache=False, **given).logits[0, seen].float() for ids in (tokens, others))
    model.train(training)
    return bool((first - second).abs().max() > 1e-4 * first.abs().max())
