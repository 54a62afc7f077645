"""The files of a fetched tokenizer: loaded for preparation, and copied so that all later stages use the same."""

from __future__ import annotations

import difflib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.schema import Data
from snaketrain.data.sources.data_issues import BadData
from snaketrain.runtime.manifests import write_json
from snaketrain.runtime.strict_json import Json, JsonObject

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

COPIED = (
    "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja",
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # what transformers calls any tokenizer.json


def tokenizer_folder(fetched: Path) -> Path:
    """The folder that contains the `tokenizer.json`."""
    found = sorted(fetched.rglob("tokenizer.json"), key=lambda path: len(path.parts))
    if not found:
        raise BadData(
            f"data.tokenizer: no tokenizer.json in {fetched}. Name the folder that has one as its `path`; "
            "`transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)` writes one."
        )
    if len(found) > 1 and len(found[0].parts) == len(found[1].parts):
        raise BadData(f"data.tokenizer: several tokenizers: {', '.join(map(str, found))}. Name the folder of one as its `path`.")
    return found[0].parent


def copy_tokenizer(source: Path, target: Path, pair: bool = False) -> list[str]:
    """Copy a tokenizer for single texts or pairs, without its own padding and truncation: callers ask for these."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write_json(target / "tokenizer.json", _read(source / "tokenizer.json") | {"padding": None, "truncation": None})
    config = _read(source / "tokenizer_config.json") if (source / "tokenizer_config.json").exists() else {}
    pad = _content(config.get("pad_token")) or next((t for t in ("[PAD]", "<pad>") if t in vocabulary(target)), None)
    # without a class, transformers would look for a model's configuration beside the tokenizer
    ours: JsonObject = {"tokenizer_class": GENERIC[0]} | ({"pad_token": pad} if pad else {})
    if pair and config.get("tokenizer_class", GENERIC[0]) in GENERIC and any(_load(target).encode("a", "b").type_ids):
        # otherwise a generic tokenizer would not return the token types that the model was trained with
        ours["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_json(target / "tokenizer_config.json", ours | config)
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    return sorted(path.name for path in target.iterdir())


def load_library_tokenizer(folder: Path, data: Data, length: str = "data.max_length") -> LibraryTokenizer:
    """A copied tokenizer that neither truncates nor pads, checked against `data`; `length`: the setting that `data.max_length` comes from."""
    library = _load(folder)
    library.no_padding()
    library.no_truncation()
    if data.end_token is not None and library.token_to_id(data.end_token) is None:
        raise BadData(f"data.end_token: the vocabulary has no token {data.end_token!r}. {_near(data.end_token, folder)}")
    added = library.num_special_tokens_to_add(data.pair) + (data.end_token is not None)
    if data.max_length is not None and data.max_length <= added:
        raise BadData(
            f"{length}: {data.max_length} leaves no room for text, since {added} special tokens are added to each. Make it larger."
        )
    return library


def end_token_id(folder: Path, data: Data) -> int | None:
    return None if data.end_token is None else vocabulary(folder)[data.end_token]


def vocabulary(folder: Path) -> dict[str, int]:
    return _load(folder).get_vocab(with_added_tokens=True)


def pad_token_id(folder: Path) -> int:
    known = vocabulary(folder)
    configured = _content(_read(folder / "tokenizer_config.json").get("pad_token"))
    return next((known[token] for token in (configured, "[PAD]", "<pad>") if token in known), 0)


def _near(token: str, folder: Path) -> str:
    """A suggestion: tokens of similar spelling, or else the special tokens."""
    near = difflib.get_close_matches(token, vocabulary(folder), n=3, cutoff=0.7)
    special = [added["content"] for added in _read(folder / "tokenizer.json").get("added_tokens") or []]
    if near:
        return f"Did you mean {' or '.join(map(repr, near))}?"
    return f"Its special tokens are {', '.join(map(repr, special[:20]))}." if special else "Name one that is in it."


def _load(folder: Path) -> LibraryTokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exceptions
        raise BadData(f"data.tokenizer: {folder / 'tokenizer.json'} cannot be loaded: {error}. Fetch it again, or name another.") from None


def _read(path: Path) -> JsonObject:
    try:
        content: JsonObject = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadData(f"data.tokenizer: {path} is not JSON ({error}). Fetch it again.") from None
    return content


def _content(token: Json) -> str | None:
    """Older files write a token as a text, newer ones as an object."""
    return token.get("content") if isinstance(token, dict) else token
