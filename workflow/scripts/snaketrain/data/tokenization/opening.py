"""Makes the tokenizer for prepared data from a copied tokenizer's folder."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeVar

from snaketrain.config.schema import Data
from snaketrain.data.tokenization.chats import ChatTokenizer
from snaketrain.data.tokenization.fast import FastTokenizer
from snaketrain.data.tokenization.files import end_token_id, load_library_tokenizer
from snaketrain.data.tokenization.parallel import ParallelTokenizer
from snaketrain.data.tokenization.tokenizer import (
    BatchTokenizer,
    PlainTokenizer,
    TargetTokenizer,
    Tokenizer,
    TokensDiffer,
    source_and_target,
)

Made = TypeVar("Made")
Opening = Callable[[Path, Data, int, bool], AbstractContextManager[Tokenizer]]


def open_tokenizer(folder: Path, data: Data, cores: int = 1, plain: bool = False) -> AbstractContextManager[Tokenizer]:
    return ParallelTokenizer(partial(make_tokenizer, folder, data, plain), cores)


def with_tokenizer(folder: Path, data: Data, cores: int, use: Callable[[Tokenizer], Made], opened: Opening = open_tokenizer) -> Made:
    """What `use` makes with a fast tokenizer, or, should that encode a text otherwise than as a whole, with a plain one.

    `opened`: opens either.
    """
    try:
        with opened(folder, data, cores, False) as fast:
            return use(fast)
    except TokensDiffer as difference:
        print(f"warning: {difference}. Encoding all texts again as wholes, which is slower but correct.", file=sys.stderr, flush=True)
    with opened(folder, data, cores, True) as plain:
        return use(plain)


def make_tokenizer(folder: Path, data: Data, plain: bool = False, length: str = "data.max_length") -> BatchTokenizer:
    """A fast one where the tokenizer allows it, unless `plain`."""
    if data.target:
        source, target = source_and_target(data)
        return TargetTokenizer(make_tokenizer(folder, source, plain), make_tokenizer(folder, target, plain, "data.max_target_length"))
    library = load_library_tokenizer(folder, data, length)
    if data.messages:
        return ChatTokenizer(folder, data, end_token_id(folder, data))
    tokenizer = PlainTokenizer(library, data)
    return tokenizer if plain else FastTokenizer.of(tokenizer) or tokenizer
