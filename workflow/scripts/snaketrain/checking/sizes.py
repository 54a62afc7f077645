"""Whether the model takes what the data gives it: positions for the longest example, and an embedding for each token."""

from collections.abc import Iterator

from torch import nn

from snaketrain.config.schema import Settings
from snaketrain.runtime.strict_json import JsonObject

POSITION_TABLES = ("position_embeddings", "wpe", "embed_positions")


def size_problems(run: Settings, module: nn.Module, facts: JsonObject) -> Iterator[str]:
    yield from _positions(run, module)
    embedding = getattr(module, "get_input_embeddings", lambda: None)()
    tokens, vocabulary = getattr(embedding, "num_embeddings", 0), facts.get("vocab_size")
    if tokens and vocabulary and tokens < vocabulary:
        given = "vocab_size" in run.model.arguments
        where, remedy = (
            ("model.arguments.vocab_size", "Remove it") if given else ("data.tokenizer", "Name the tokenizer that belongs to model.source")
        )
        yield f"{where}: the tokenizer has {vocabulary} tokens, but the model an embedding for {tokens}. {remedy}."


def _positions(run: Settings, module: nn.Module) -> Iterator[str]:
    """A model whose positions have no table, such as T5, has no limit."""
    limit = positions_of(module)
    data = run.data
    if run.train.block_length is not None:
        lengths = {"train.block_length": run.train.block_length}
    else:
        lengths = {
            name: value
            for name, value in (
                ("data.max_length", data.max_length),
                ("data.max_target_length", data.max_target_length if data.target else None),
            )
            if value
        }
    for setting, length in lengths.items():
        if limit is not None and length > limit:
            or_model = "" if run.model.source else ", or raise model.arguments.max_position_embeddings"
            yield f"{setting}: is {length}, but the model has {limit} positions. Set {setting}: {limit}{or_model}."


def positions_of(module: nn.Module) -> int | None:
    """How many tokens a text may have: the rows of its table of positions, or what its configuration was trained with."""
    config = getattr(module, "config", None)
    declared = getattr(config, "max_position_embeddings", None)
    if (
        not isinstance(declared, int)
        or declared < 1
        or (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") != "default"
    ):
        return None
    for name, part in module.named_modules():
        if name.rpartition(".")[2] in POSITION_TABLES and isinstance(part, nn.Embedding):
            kept = part.padding_idx + 1 if part.padding_idx is not None else getattr(part, "offset", 0)  # RoBERTa's and BART's first rows
            return part.num_embeddings - kept
    return declared
