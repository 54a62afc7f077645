"""Texts are encoded word by word, and of long ones only the beginning; the tokens equal those of the whole text."""

import random
import unicodedata
from functools import cache

import pyarrow
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from snaketrain.config.schema import Data
from snaketrain.data.tokenizer import BatchTokenizer, PlainTokenizer, TokensDiffer
from snaketrain.extras.fast_tokenizer import tokenizer as module
from snaketrain.extras.fast_tokenizer.tokenizer import faster, splits_at_spaces

pytestmark = pytest.mark.lengthy

SPECIAL = ["[UNK]", "[CLS]", "[SEP]"]
SPACES = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n ", " \t", "\u00a0", " \u3000"]
SYLLABLES = ["ba", "ti", "lo", "ré", "Ü", "o\u0308", "ß", "漢字", "12", "3.5", "'s", "don't", "—", "...", "🙂", "\u0301", "x", "ing"]

COMMON = [word[:length] for word in ("batilore", "tibaloti", "loretiba", "retiloba") for length in range(3, 9)]


def texts(count: int, longest: int, seed: int = 0) -> list[str]:
    """Words of all lengths, some longer than the part that is encoded, between spaces of all kinds."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = ["".join(draw.choices(SYLLABLES, k=draw.choice([1, 2, 3, 3, 4, 60]))) for _ in range(draw.randint(1, longest))]
        spaces = draw.choices(SPACES, k=len(words))
        found.append("".join(word + space for word, space in zip(words, spaces, strict=True)))
    for number in range(count):  # words of one token each, so that the encoded part is barely long enough, or barely too short
        alike = [word for word in COMMON if len(word) in (3 + number % 6, 4 + number % 5)]
        found.append(" ".join(draw.choices(alike, k=draw.randint(15, 60))))
    return [*found, "", " ", " " * 2000, "x" * 3000, " " + "y" * 3000, "a " * 1500]


def trained(kind: str) -> Tokenizer:
    return Tokenizer.from_str(_trained(kind))


@cache
def _trained(kind: str) -> str:
    model, before, normal, trainer = {
        "word pieces": (
            models.WordPiece(unk_token="[UNK]"),
            pre_tokenizers.BertPreTokenizer(),
            normalizers.BertNormalizer(),
            trainers.WordPieceTrainer,
        ),
        "bytes": (models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), None, trainers.BpeTrainer),
        "unigrams": (models.Unigram(), pre_tokenizers.Metaspace(), normalizers.NFKC(), trainers.UnigramTrainer),
        "one piece": (models.BPE(), pre_tokenizers.Metaspace(split=False), None, trainers.BpeTrainer),
    }[kind]
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = before
    if normal:
        tokenizer.normalizer = normal
    given = {"unk_token": "[UNK]"} if kind == "unigrams" else {}
    tokenizer.train_from_iterator(texts(200, 60, seed=1), trainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False, **given))
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return tokenizer.to_str()


def fast_where_possible(library: Tokenizer, **settings) -> BatchTokenizer:
    plain = PlainTokenizer(library, Data(name="x", train={"path": "x"}, tokenizer={"path": "x"}, **settings))
    return faster(plain) or plain


def encoded(library: Tokenizer, some: list[str], **settings) -> pyarrow.Table:
    batches = [pyarrow.record_batch({"text": some[start : start + 50]}) for start in range(0, len(some), 50)]
    return pyarrow.Table.from_batches(fast_where_possible(library, label=None, **settings).encode(batches))


@pytest.mark.parametrize("end_token", [None, "[SEP]"])
@pytest.mark.parametrize("kind", ["word pieces", "bytes", "unigrams", "one piece"])
def test_tokens_equal_those_of_the_whole_text(kind, end_token):
    tokenizer, some = trained(kind), texts(100, 300)
    assert splits_at_spaces(tokenizer) == (kind != "one piece")
    tokenizer.enable_truncation(24 - (end_token is not None))
    whole, end = tokenizer.encode_batch(some), [tokenizer.token_to_id(end_token)] if end_token else []
    tokenizer.no_truncation()
    made = encoded(tokenizer, some, max_length=24, end_token=end_token)
    assert made["input_ids"].to_pylist() == [encoding.ids + end for encoding in whole]
    assert made["truncated"].to_pylist() == [bool(encoding.overflowing) for encoding in whole]
    assert sum(made["truncated"].to_pylist()) > 100


@pytest.mark.parametrize("cached", [0, 10**6])
@pytest.mark.parametrize("kind", ["word pieces", "bytes", "unigrams"])
def test_whole_texts_have_equal_tokens_too(kind, cached, monkeypatch):
    """Most of their words occur inside many texts, and what the cache evicts in between makes no difference."""
    monkeypatch.setattr(module, "CACHED_CHARACTERS", cached)
    tokenizer, some = trained(kind), texts(100, 100)
    whole = [encoding.ids for encoding in tokenizer.encode_batch(some)]
    made = encoded(tokenizer, some, max_length=None)
    assert made["input_ids"].to_pylist() == whole
    assert not any(made["truncated"].to_pylist())


def test_the_plain_tokenizer_is_used_if_tokens_of_words_differ():
    """This tokenizer splits at spaces, yet a word has other tokens after another word than alone."""
    tokenizer, some = trained("bytes"), ["ba ti lo", "ti ba lo", "lo lo"] * 20
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace("ba ti", "x")])
    assert splits_at_spaces(tokenizer)
    with pytest.raises(TokensDiffer, match="encodes '.*' differently from its words"):
        encoded(tokenizer, some, max_length=None)


PAIRS = {
    "around": "[CLS] $A [SEP] $B:1 [SEP]:1",
    "between": "$A [SEP] [SEP] $B:1",
    "only behind": "$A $B:1 [SEP]:1",
    "the other way round": "[CLS] $B [SEP] $A:1 [SEP]:1",
}


@pytest.mark.parametrize("max_length", [7, 16, 33])
@pytest.mark.parametrize("template", PAIRS)
@pytest.mark.parametrize("kind", ["word pieces", "bytes", "unigrams", "one piece"])
def test_pairs_are_truncated_like_the_tokenizer_does(kind, template, max_length):
    tokenizer, draw = trained(kind), random.Random(0)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair=PAIRS[template], special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    lengths = [(a, b) for a in range(0, 21, 2) for b in range(0, 21, 2)] + [(15, 16), (16, 15), (100, 3), (3, 100), (100, 99)]
    pairs = [tuple(" ".join(draw.choices(COMMON, k=length)) for length in both) for both in lengths]
    shorter = [text[:200] for text in texts(30, 12)]
    pairs += zip(shorter, reversed(shorter), strict=True)
    first, second = zip(*pairs, strict=True)
    fast = fast_where_possible(tokenizer, text=["text", "text_pair"], max_length=max_length)
    made = fast.encode_batch(pyarrow.record_batch({"text": first, "text_pair": second})).to_pydict()
    tokenizer.enable_truncation(max_length)
    whole = tokenizer.encode_batch(pairs)
    assert made["input_ids"] == [encoding.ids for encoding in whole]
    assert made["token_type_ids"] == [encoding.type_ids for encoding in whole]
    assert made["truncated"] == [bool(encoding.overflowing) for encoding in whole]
    assert 5 < sum(made["truncated"]) < len(pairs)


def test_visible_characters_do_not_normalize_to_spaces():
    visible = module.visible()
    assert len(visible) > 11_000
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert not [c for c in visible if any(part.isspace() for part in unicodedata.normalize(form, c))]
    assert not [c for c in visible if unicodedata.category(c) in ("Cc", "Cf", "Mn", "Mc", "Me", "Zs")]
