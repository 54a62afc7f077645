"""The tokenizer of a fetched model: loaded for preparing, and copied so that every later stage finds the same."""

import json
import shutil
from pathlib import Path
from typing import Any

from snaketrain.data.formats import BadData
from snaketrain.manifests import write_json

COPIED = (
    "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja",
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip


def tokenizer_folder(fetched: Path) -> Path:
    """The one folder below with a `tokenizer.json`."""
    found = sorted(fetched.rglob("tokenizer.json"), key=lambda path: len(path.parts))
    if not found:
        raise BadData(
            f"data.tokenizer: no tokenizer.json in {fetched}. Name the folder that has one as its `path`; "
            "`transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)` writes one."
        )
    if len(found) > 1 and len(found[0].parts) == len(found[1].parts):
        raise BadData(f"data.tokenizer: several tokenizers: {', '.join(map(str, found))}. Name the folder of one as its `path`.")
    return found[0].parent


def copy_tokenizer(source: Path, target: Path) -> list[str]:
    """Copy the tokenizer without its own padding and truncation, which would override what a caller asks for."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write_json(target / "tokenizer.json", _read(source / "tokenizer.json") | {"padding": None, "truncation": None})
    config = _read(source / "tokenizer_config.json") if (source / "tokenizer_config.json").exists() else {}
    pad = _token(config.get("pad_token")) or next((t for t in ("[PAD]", "<pad>") if t in vocabulary(target)), None)
    # without these transformers would look for the model's configuration beside the tokenizer
    write_json(
        target / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | ({"pad_token": pad} if pad else {}) | config
    )
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    return sorted(path.name for path in target.iterdir())


def load_tokenizer(folder: Path, max_length: int, pair: bool):
    """A copied tokenizer that cuts to `max_length`; it works on many texts in parallel by itself."""
    tokenizer = _load(folder)
    added = tokenizer.num_special_tokens_to_add(pair)
    if max_length <= added:
        raise BadData(
            f"data.max_length: {max_length} leaves no room for text, as the tokenizer itself adds {added} tokens. Make it larger."
        )
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def vocabulary(folder: Path) -> dict[str, int]:
    return _load(folder).get_vocab(with_added_tokens=True)


def pad_token_id(folder: Path) -> int:
    known = vocabulary(folder)
    configured = _token(_read(folder / "tokenizer_config.json").get("pad_token"))
    return next((known[token] for token in (configured, "[PAD]", "<pad>") if token in known), 0)


def _load(folder: Path):
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exceptions
        raise BadData(f"data.tokenizer: {folder / 'tokenizer.json'} cannot be loaded: {error}. Fetch it again, or name another.") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadData(f"data.tokenizer: {path} is not JSON ({error}). Fetch it again.") from None


def _token(value: Any) -> str | None:
    return value.get("content") if isinstance(value, dict) else value
