"""Random texts through many kinds of tokenizers: the plain tokenizer equals the library."""

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import pyarrow
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as parts

from snaketrain.config.schema import Data
from snaketrain.data.tokenizer import PlainTokenizer
from snaketrain.data.tokenizer import Tokenizer as TokenizerInterface

SPECIAL = ["<unk>", "<s>", "</s>", "<mask>"]
SPACES = [*[" "] * 12, "  ", "   ", "\n", "\n\n", " \t", "\u00a0", "\u2003", "\u3000", "\u200b", " \u0301", "\r\n", "\x1f", "▁", ""]
SYLLABLES = [
    "ba", "ti", "lo", "Ré", "ÜB", "o\u0308", "ß", "İ", "漢字", "12", "3.5", "'s", "don't", "—", "...", "🙂", "\u0301", "x", "ing", "ﬁ",
    "Σ", "٣", "Ａ", "▁", "_", "Ġ", "the", "<mask>", "<MASK>", "</s>", "<s", "new", "york", "\ufeff", "가", "ש",
]  # fmt: skip
FRANCE = [
    "the capital of France is <mask>.", "the capital of France is <mask> .", "<mask>.", "Is it <mask>? x", "a <mask>, b", "x<mask>y z",
    "to <mask><mask>! and", "the <mask>\u3000. is", " <mask> .", "</s>x ba", "ba new york. ti",
]  # fmt: skip


def texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)

    def word() -> str:
        return "".join(draw.choices(SYLLABLES, k=draw.choice([1, 1, 2, 2, 3, 6])))

    vocabulary = [word() for _ in range(60)]  # words that occur again in other contexts
    made = []
    for _ in range(count):
        words = [draw.choice(vocabulary) if draw.random() < 0.8 else word() for _ in range(draw.randint(0, 14))]
        odd = draw.random() < 0.4
        made.append("".join(word + (draw.choice(SPACES) if odd else " ") for word in words).strip("" if odd else " "))
    return [
        *sorted(made, key=lambda text: "<" in text),
        *FRANCE,
    ]  # added tokens occur late, so that a check of the beginning would miss them


@cache
def trained(kind: str) -> str:
    """The model alone; texts are cut into pieces as wide as a pre-tokenizer of its kind would."""
    model, before, trainer, given = {
        "bytes": (models.BPE(), parts.ByteLevel(), trainers.BpeTrainer, {"initial_alphabet": parts.ByteLevel.alphabet()}),
        "pieces": (models.WordPiece(unk_token="<unk>"), parts.BertPreTokenizer(), trainers.WordPieceTrainer, {}),
        "words": (models.WordLevel(unk_token="<unk>"), parts.Whitespace(), trainers.WordLevelTrainer, {}),
        "unigrams": (models.Unigram(), parts.Metaspace(), trainers.UnigramTrainer, {"unk_token": "<unk>"}),
        "pairs": (models.BPE(unk_token="<unk>", fuse_unk=True), parts.Metaspace(), trainers.BpeTrainer, {}),
        "suffixes": (
            models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
            parts.Whitespace(),
            trainers.BpeTrainer,
            {"end_of_word_suffix": "</w>"},
        ),
    }[kind]
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = before
    some = [text.replace("<mask>", "") for seed in (1, 2) for text in texts(seed, 100)]
    tokenizer.train_from_iterator(some, trainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False, **given))
    return tokenizer.to_str()


def made(model, before=None, normal=None, after=None, mask=None, added=()) -> Tokenizer:
    tokenizer = Tokenizer.from_str(trained(model))
    tokenizer.pre_tokenizer = before
    if normal:
        tokenizer.normalizer = normal
    tokenizer.post_processor = after or template("<s> $A </s>", "<s> $A </s> $B:1 </s>:1")
    tokenizer.add_special_tokens([AddedToken("<mask>", **mask or {})])
    tokenizer.add_tokens(list(added))
    return tokenizer


def template(single: str, pair: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)])


def in_a_row(*steps):
    kind = normalizers if isinstance(steps[0], normalizers.Normalizer) else parts
    return kind.Sequence(list(steps))


def roberta(trim: bool) -> processors.RobertaProcessing:
    return processors.RobertaProcessing(("</s>", 2), ("<s>", 1), trim_offsets=trim, add_prefix_space=True)


def byte_level(**changes) -> parts.ByteLevel:
    return parts.ByteLevel(**{"add_prefix_space": False} | changes)


GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
LLAMA = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
LEFT = {"lstrip": True}

KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: made("bytes", byte_level()),
    "bytes, space before": lambda: made("bytes", byte_level(add_prefix_space=True)),
    "roberta": lambda: made("bytes", byte_level(add_prefix_space=True), after=roberta(True), mask=LEFT),
    "roberta, mask without lstrip": lambda: made("bytes", byte_level(add_prefix_space=True), after=roberta(True)),
    "roberta, untrimmed": lambda: made("bytes", byte_level(add_prefix_space=True), after=roberta(False), mask=LEFT),
    "bytes, trimmed": lambda: made("bytes", byte_level(), after=processors.ByteLevel(trim_offsets=True)),
    "bytes, untrimmed": lambda: made("bytes", byte_level(), after=processors.ByteLevel(trim_offsets=False)),
    "bytes in one piece": lambda: made("bytes", byte_level(use_regex=False)),
    "gpt-4": lambda: made("bytes", in_a_row(parts.Split(Regex(GPT4), "isolated"), byte_level(use_regex=False))),
    "bytes and digits": lambda: made("bytes", in_a_row(parts.Digits(individual_digits=True), byte_level())),
    "bytes and scripts": lambda: made("bytes", in_a_row(parts.UnicodeScripts(), byte_level())),
    "bytes, composed": lambda: made("bytes", byte_level(), normalizers.NFC()),
    "bytes, small letters": lambda: made("bytes", byte_level(), normalizers.Lowercase(), added=[AddedToken("New")]),
    "mask with rstrip": lambda: made("bytes", byte_level(), mask={"rstrip": True}),
    "mask as a single word": lambda: made("bytes", byte_level(), mask={"single_word": True}),
    "mask as text": lambda: made("bytes", byte_level(), mask={"normalized": True, "lstrip": True}),
    "token of two words": lambda: made("bytes", byte_level(), added=["new york"]),
    "token of two words, normalised": lambda: made("bytes", byte_level(), normalizers.Replace("_", " "), added=[AddedToken("new_york", normalized=True)]),
    "stripped": lambda: made("bytes", byte_level(), normalizers.Strip()),
    "two words become one": lambda: made("bytes", byte_level(), normalizers.Replace(Regex("a +[a-z]"), "x")),
    "spaces become one": lambda: made("bytes", byte_level(), normalizers.Replace(Regex(r"\s+"), " ")),
    "characters dropped": lambda: made("bytes", byte_level(), normalizers.Replace("x", "")),
    "bert": lambda: made("pieces", parts.BertPreTokenizer(), normalizers.BertNormalizer()),
    "bert, cased": lambda: made("pieces", parts.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=False)),
    "bert's own template": lambda: made("pieces", parts.BertPreTokenizer(), after=processors.BertProcessing(("</s>", 2), ("<s>", 1))),
    "pieces between spaces": lambda: made("pieces", parts.WhitespaceSplit(), normalizers.StripAccents()),
    "words": lambda: made("words", parts.Whitespace(), normalizers.Lowercase()),
    "words and signs": lambda: made("words", in_a_row(parts.WhitespaceSplit(), parts.Punctuation()), normalizers.NFKD()),
    "words at a character": lambda: made("words", parts.CharDelimiterSplit(" ")),
    "words with spaces": lambda: made("words", parts.Punctuation()),
    "unigrams": lambda: made("unigrams", parts.Metaspace(), normalizers.NFKC()),
    "unigrams, first": lambda: made("unigrams", parts.Metaspace(prepend_scheme="first"), mask=LEFT),
    "unigrams, never": lambda: made("unigrams", parts.Metaspace(prepend_scheme="never")),
    "unigrams in one piece": lambda: made("unigrams", parts.Metaspace(split=False)),
    "t5": lambda: made("unigrams", in_a_row(parts.WhitespaceSplit(), parts.Metaspace()), mask=LEFT),
    "albert": lambda: made("unigrams", parts.Metaspace(), in_a_row(normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase())),
    "pairs": lambda: made("pairs", parts.Metaspace(), in_a_row(normalizers.Nmt(), normalizers.NFKC())),
    "llama": lambda: made("pairs", None, in_a_row(*LLAMA)),
    "ends of words": lambda: made("suffixes", parts.Whitespace(), in_a_row(normalizers.NFC(), normalizers.Lowercase())),
    "nothing between": lambda: made("pieces", parts.BertPreTokenizer(), after=template("</s> $A", "$A $B:1")),
}  # fmt: skip


class Given(NamedTuple):
    texts: list[str] | list[tuple[str, str]]
    batches: list[pyarrow.RecordBatch]  # of them
    library: Tokenizer
    plain: PlainTokenizer
    longest: int | None


def every_way(kind: str) -> Iterator[Given]:
    """Whole texts, cut-off ones and cut-off pairs."""
    first, second = texts(3, 150), random.Random(0).sample(texts(3, 150), 150 + len(FRANCE))
    for given, longest in ((first, None), (first, 9), (list(zip(first, second, strict=True)), 15)):
        pair = isinstance(given[0], tuple)
        settings = {"text": ["text", "text_pair"]} if pair else {"label": None}
        data = Data(train={"path": "x"}, tokenizer={"path": "x"}, max_length=longest, **settings)
        table = {"text": first, "text_pair": second} if pair else {"text": first}
        library = KINDS[kind]()
        yield Given(given, pyarrow.table(table).to_batches(max_chunksize=40), library, PlainTokenizer(library, data), longest)


def encoded(tokenizer: TokenizerInterface, batches: list[pyarrow.RecordBatch]) -> pyarrow.Table:
    return pyarrow.Table.from_batches(tokenizer.encode(batches))


@pytest.mark.parametrize("kind", KINDS)
def test_plain_and_library_agree(kind):
    for given in every_way(kind):
        rows = encoded(given.plain, given.batches)
        if given.longest:
            given.library.enable_truncation(given.longest)
        for text, row, encoding in zip(given.texts, rows.to_pylist(), given.library.encode_batch(given.texts), strict=True):
            assert row["input_ids"] == encoding.ids, text
            assert row["truncated"] == bool(encoding.overflowing), text
            assert isinstance(text, str) or row["token_type_ids"] == encoding.type_ids, text


def test_there_are_many_kinds():
    assert len(KINDS) >= 25
