"""What a language model lets a token see, found by trying: not every class of transformers is causal, nor can keep texts of one row apart."""

import torch
from torch import Tensor, nn

HALF = 6  # tokens


def sees_later_tokens(model: nn.Module) -> bool:
    """Whether another last token changes what is predicted before it: such a model would only learn to copy."""
    return _differ(model, changed=-1, seen=slice(0, -1), position_ids=None)


def sees_other_texts(model: nn.Module) -> bool:
    """Whether another first text of a row changes what is predicted in the second, which `position_ids` tell apart."""
    return _differ(model, changed=0, seen=slice(HALF, None), position_ids=torch.arange(HALF).repeat(2)[None])


@torch.no_grad()
def _differ(model: nn.Module, changed: int, seen: slice, position_ids: Tensor | None) -> bool:
    """Whether the logits at the `seen` places change with the token at the `changed` one."""
    vocabulary = model.get_output_embeddings().weight.shape[0]
    tokens = torch.arange(2 * HALF)[None] % vocabulary
    others = tokens.clone()
    others[0, changed] = (others[0, changed] + 1) % vocabulary
    training = model.training
    model.eval()
    given = {} if position_ids is None else {"position_ids": position_ids}
    first, second = (model(input_ids=ids, use_cache=False, **given).logits[0, seen].float() for ids in (tokens, others))
    model.train(training)
    return bool((first - second).abs().max() > 1e-4 * first.abs().max())
