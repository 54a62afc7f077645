"""Makes the tokenizer for prepared data from a copied tokenizer's folder."""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from snaketrain.config.schema import Data
from snaketrain.data.tokenization.chats import ChatTokenizer
from snaketrain.data.tokenization.fast import FastTokenizer
from snaketrain.data.tokenization.files import end_token_id, load_library_tokenizer
from snaketrain.data.tokenization.parallel import ParallelTokenizer
from snaketrain.data.tokenization.plain import PlainTokenizer
from snaketrain.data.tokenization.targets import TargetTokenizer, source_and_target
from snaketrain.data.tokenization.tokenizer import BatchTokenizer, Tokenizer


def open_tokenizer(folder: Path, data: Data, cores: int = 1, plain: bool = False) -> AbstractContextManager[Tokenizer]:
    return ParallelTokenizer(partial(make_tokenizer, folder, data, plain), cores)


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
