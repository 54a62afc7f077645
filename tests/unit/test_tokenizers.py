"""Random texts through many kinds of tokenizers: the plain tokenizer equals the library, and the fast one the plain one."""

import random
from collections.abc import Callable
from functools import cache

import pyarrow
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as parts

from snaketrain.config.schema import Data
from snaketrain.data.fast_tokenizer import FastTokenizer
from snaketrain.data.preparing import prepare
from snaketrain.data.tokenizer import PlainTokenizer, TokensDiffer
from snaketrain.data.tokenizer import Tokenizer as TokenizerInterface
from snaketrain.data.tokenizer_files import make_tokenizer

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

# how texts are to be encoded: by words, whole from the beginning, or whole once a difference is noticed
KINDS: dict[str, tuple[str, Callable[[], Tokenizer]]] = {
    "bytes": ("words", lambda: made("bytes", byte_level())),
    "bytes, space before": ("words", lambda: made("bytes", byte_level(add_prefix_space=True))),
    "roberta": ("words", lambda: made("bytes", byte_level(add_prefix_space=True), after=roberta(True), mask=LEFT)),
    "roberta, mask without lstrip": ("words", lambda: made("bytes", byte_level(add_prefix_space=True), after=roberta(True))),
    "roberta, untrimmed": ("words", lambda: made("bytes", byte_level(add_prefix_space=True), after=roberta(False), mask=LEFT)),
    "bytes, trimmed": ("words", lambda: made("bytes", byte_level(), after=processors.ByteLevel(trim_offsets=True))),
    "bytes, untrimmed": ("words", lambda: made("bytes", byte_level(), after=processors.ByteLevel(trim_offsets=False))),
    "bytes in one piece": ("whole", lambda: made("bytes", byte_level(use_regex=False))),
    "gpt-4": ("words", lambda: made("bytes", in_a_row(parts.Split(Regex(GPT4), "isolated"), byte_level(use_regex=False)))),
    "bytes and digits": ("words", lambda: made("bytes", in_a_row(parts.Digits(individual_digits=True), byte_level()))),
    "bytes and scripts": ("noticed", lambda: made("bytes", in_a_row(parts.UnicodeScripts(), byte_level()))),
    "bytes, composed": ("words", lambda: made("bytes", byte_level(), normalizers.NFC())),
    "bytes, small letters": ("words", lambda: made("bytes", byte_level(), normalizers.Lowercase(), added=[AddedToken("New")])),
    "mask with rstrip": ("whole", lambda: made("bytes", byte_level(), mask={"rstrip": True})),
    "mask as a single word": ("words", lambda: made("bytes", byte_level(), mask={"single_word": True})),
    "mask as text": ("words", lambda: made("bytes", byte_level(), mask={"normalized": True, "lstrip": True})),
    "token of two words": ("whole", lambda: made("bytes", byte_level(), added=["new york"])),
    "token of two words, normalised": (
        "whole",
        lambda: made("bytes", byte_level(), normalizers.Replace("_", " "), added=[AddedToken("new_york", normalized=True)]),
    ),
    "stripped": ("noticed", lambda: made("bytes", byte_level(), normalizers.Strip())),
    "two words become one": ("noticed", lambda: made("bytes", byte_level(), normalizers.Replace(Regex("a +[a-z]"), "x"))),
    "spaces become one": ("words", lambda: made("bytes", byte_level(), normalizers.Replace(Regex(r"\s+"), " "))),
    "characters dropped": ("words", lambda: made("bytes", byte_level(), normalizers.Replace("x", ""))),
    "bert": ("words", lambda: made("pieces", parts.BertPreTokenizer(), normalizers.BertNormalizer())),
    "bert, cased": ("words", lambda: made("pieces", parts.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=False))),
    "bert's own template": (
        "words",
        lambda: made("pieces", parts.BertPreTokenizer(), after=processors.BertProcessing(("</s>", 2), ("<s>", 1))),
    ),
    "pieces between spaces": ("words", lambda: made("pieces", parts.WhitespaceSplit(), normalizers.StripAccents())),
    "words": ("words", lambda: made("words", parts.Whitespace(), normalizers.Lowercase())),
    "words and signs": ("words", lambda: made("words", in_a_row(parts.WhitespaceSplit(), parts.Punctuation()), normalizers.NFKD())),
    "words at a character": ("words", lambda: made("words", parts.CharDelimiterSplit(" "))),
    "words with spaces": ("whole", lambda: made("words", parts.Punctuation())),
    "unigrams": ("words", lambda: made("unigrams", parts.Metaspace(), normalizers.NFKC())),
    "unigrams, first": ("words", lambda: made("unigrams", parts.Metaspace(prepend_scheme="first"), mask=LEFT)),
    "unigrams, never": ("words", lambda: made("unigrams", parts.Metaspace(prepend_scheme="never"))),
    "unigrams in one piece": ("whole", lambda: made("unigrams", parts.Metaspace(split=False))),
    "t5": ("words", lambda: made("unigrams", in_a_row(parts.WhitespaceSplit(), parts.Metaspace()), mask=LEFT)),
    "albert": (
        "words",
        lambda: made("unigrams", parts.Metaspace(), in_a_row(normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase())),
    ),
    "pairs": ("words", lambda: made("pairs", parts.Metaspace(), in_a_row(normalizers.Nmt(), normalizers.NFKC()))),
    "llama": ("whole", lambda: made("pairs", None, in_a_row(*LLAMA))),
    "ends of words": ("words", lambda: made("suffixes", parts.Whitespace(), in_a_row(normalizers.NFC(), normalizers.Lowercase()))),
    "nothing between": ("words", lambda: made("pieces", parts.BertPreTokenizer(), after=template("</s> $A", "$A $B:1"))),
}  # fmt: skip


def encoded(tokenizer: TokenizerInterface, batches: list[pyarrow.RecordBatch]) -> pyarrow.Table:
    return pyarrow.Table.from_batches(tokenizer.encode(batches))


def way_of(plain: PlainTokenizer, batches: list[pyarrow.RecordBatch], expected: pyarrow.Table) -> str:
    """How the texts are encoded; if by words, the tokens must be those expected."""
    if (fast := FastTokenizer.of(plain)) is None:
        return "whole"
    try:
        assert encoded(fast, batches).equals(expected)
    except TokensDiffer:
        return "noticed"
    return "words"


@pytest.mark.parametrize("kind", KINDS)
def test_fast_plain_and_library_agree(kind):
    expected, make = KINDS[kind]
    first, second = texts(3, 150), random.Random(0).sample(texts(3, 150), 150 + len(FRANCE))
    ways = set()
    for given, longest in ((first, None), (first, 9), (list(zip(first, second, strict=True)), 15)):
        pair = isinstance(given[0], tuple)
        settings = {"text": ["text", "text_pair"]} if pair else {"label": None}
        data = Data(train={"path": "x"}, tokenizer={"path": "x"}, max_length=longest, **settings)
        table = {"text": first, "text_pair": second} if pair else {"text": first}
        batches = pyarrow.table(table).to_batches(max_chunksize=40)
        library = make()
        plain = PlainTokenizer(library, data)
        rows = encoded(plain, batches)
        ways.add(way_of(plain, batches, rows))
        if longest:
            library.enable_truncation(longest)
        for text, row, encoding in zip(given, rows.to_pylist(), library.encode_batch(given), strict=True):
            assert row["input_ids"] == encoding.ids, text
            assert row["truncated"] == bool(encoding.overflowing), text
            assert not pair or row["token_type_ids"] == encoding.type_ids, text
    assert ways == {expected}


def test_there_are_many_kinds():
    assert len(KINDS) >= 25


@pytest.mark.parametrize("limit", [{}, {"limit_train": 5000}])
def test_a_difference_far_into_the_data_is_noticed(tiny_tokenizer, tmp_path, monkeypatch, capsys, limit):
    """In the third batch a text first has other tokens than its words alone; then everything is encoded again as whole texts."""
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.normalizer = normalizers.Replace("never good", "great")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr("snaketrain.data.split_files.BATCH_ROWS", 2000)
    monkeypatch.setattr("snaketrain.data.fast_tokenizer.SAMPLE_BYTES", 500)
    rows = ["this movie was good", "that was boring"] * 2000 + ["what a story", "it was never good"] * 1000
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(rows)))
    data = Data(train={"path": "x"}, tokenizer={"path": "x"}, dev_fraction=0, test_fraction=0, **limit)
    prepare(data, {"train": [tmp_path / "train.tsv"]}, tmp_path, tmp_path, tmp_path)
    with pyarrow.OSFile(str(tmp_path / "train.arrow")) as file:
        written = pyarrow.ipc.open_file(file).read_all().to_pylist()
    assert len(written) == limit.get("limit_train", 6000)
    assert {row["text"]: row["input_ids"] for row in written} == {text: tokenizer.encode(text).ids for text in set(rows)}
    assert "encodes 'it was never good' differently from its words" in capsys.readouterr().err


def test_some_texts_of_each_batch_are_compared(tiny_tokenizer):
    fast = make_tokenizer(tiny_tokenizer, Data(train={"path": "x"}, tokenizer={"path": "x"}))
    compared, encode_batch = [], fast.plain.encode_batch
    fast.plain.encode_batch = lambda texts: compared.append(texts["text"].to_pylist()) or encode_batch(texts)
    for number in range(3):
        fast.encode_batch(pyarrow.record_batch({"text": [f"good movie {number} number {n}" + "x" * (n % 40) for n in range(5000)]}))
    fast.encode_batch(pyarrow.record_batch({"text": ["good " * 100_000]}))
    assert len(compared) == 4 and len(compared[3]) == 1
    assert all(15_000 < sum(map(len, some)) <= 20_000 for some in compared[:3])
    assert len({tuple(some) for some in compared}) == 4, "different rows of each batch"
