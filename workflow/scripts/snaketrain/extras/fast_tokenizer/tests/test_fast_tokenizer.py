"""Random texts through many kinds of tokenizers: the fast tokenizer equals the plain one, or notices that it does not."""

import pyarrow
import pytest
from tokenizers import Tokenizer, normalizers
from unit.test_tokenizers import KINDS, Given, encoded, every_way

from snaketrain.config.schema import Data
from snaketrain.data.preparing import prepare
from snaketrain.data.tokenizer import TokensDiffer
from snaketrain.data.tokenizer_files import make_tokenizer
from snaketrain.extras.fast_tokenizer.tokenizer import faster

# of the kinds of tokenizers: what is encoded whole from the beginning, and what is once a difference is noticed
WHOLE = (
    "bytes in one piece", "mask with rstrip", "token of two words", "token of two words, normalised", "words with spaces", "unigrams in one piece", "llama",
)  # fmt: skip
NOTICED = ("bytes and scripts", "stripped", "two words become one")


def way_of(given: Given) -> str:
    """How the texts are encoded; if by words, their tokens must be those of the plain tokenizer."""
    if (fast := faster(given.plain)) is None:
        return "whole"
    try:
        assert encoded(fast, given.batches).equals(encoded(given.plain, given.batches))
    except TokensDiffer:
        return "noticed"
    return "words"


@pytest.mark.parametrize("kind", KINDS)
def test_fast_and_plain_agree(kind):
    ways = {way_of(given) for given in every_way(kind)}
    assert ways == {"whole" if kind in WHOLE else "noticed" if kind in NOTICED else "words"}


@pytest.mark.parametrize("limit", [{}, {"limit_train": 5000}])
def test_a_difference_far_into_the_data_is_noticed(tiny_tokenizer, tmp_path, monkeypatch, capsys, limit):
    """In the third batch a text first has other tokens than its words alone; then everything is encoded again as whole texts."""
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.normalizer = normalizers.Replace("never good", "great")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr("snaketrain.data.split_files.BATCH_ROWS", 2000)
    monkeypatch.setattr("snaketrain.extras.fast_tokenizer.tokenizer.SAMPLE_BYTES", 500)
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
