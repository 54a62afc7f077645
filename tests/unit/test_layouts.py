"""How texts fill the batches of a language model: every token once, little padding, none beyond the budget."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch

from snaketrain.data.loading.batches import Batches, shard_batch
from snaketrain.data.loading.examples import Blocks, Packed, TextExamples, in_rows


def write(path, texts: list[list[int]], batch: int) -> TextExamples:
    """Prepared texts in record batches of this size: files of a large corpus have many."""
    schema = pyarrow.schema([("input_ids", pyarrow.list_(pyarrow.int32())), ("label", pyarrow.int64())])
    with pyarrow.ipc.new_file(str(path), schema) as file:
        for start in range(0, len(texts), batch):
            rows = texts[start : start + batch]
            file.write_batch(
                pyarrow.record_batch([pyarrow.array(rows, schema.field(0).type), pyarrow.array([-100] * len(rows))], schema=schema)
            )
    return TextExamples(path, pad_token_id=0)


def texts(count: int, longest: int = 40) -> list[list[int]]:
    """No token occurs twice."""
    lengths = np.random.default_rng(count).integers(1, longest, count)
    return [list(range(end - length + 1, end + 1)) for length, end in zip(lengths, np.cumsum(lengths), strict=True)]


@pytest.mark.parametrize("length", [1, 7, 16, 1000])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_blocks_cover_each_token_exactly_once(tmp_path, length, batch):
    known = texts(23)
    running = np.concatenate(known)
    blocks = Blocks(write(tmp_path / "a.arrow", known, batch), length)
    found, after = [], []
    for number in range(len(blocks)):
        row = blocks.batch([number])["input_ids"][0].tolist()
        assert len(row) == blocks.lengths[:][number] + 1
        found += row[:-1]
        after += row[1:]
    assert found == running[:-1].tolist() and after == running[1:].tolist()
    assert set(blocks.lengths[:-1]) <= {length} and 0 < blocks.lengths[:][-1] <= length


def test_only_the_last_block_is_padded(tmp_path):
    blocks = Blocks(write(tmp_path / "a.arrow", [list(range(1, 12))], 1), 4)
    batch = blocks.batch([2, 0])
    assert batch["input_ids"].tolist() == [[9, 10, 11, 0, 0], [1, 2, 3, 4, 5]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]


@pytest.mark.parametrize("tokens", [[], [[1]]])
def test_text_of_one_token_makes_no_block(tmp_path, tokens):
    assert len(Blocks(write(tmp_path / "a.arrow", tokens, 5), 4)) == 0


@pytest.mark.parametrize(("world_size", "pieces"), [(1, 1), (2, 2), (3, 1)])
def test_packed_rows_hold_each_text_once_and_whole(tmp_path, world_size, pieces):
    known = texts(61)
    packed = Packed(write(tmp_path / "a.arrow", known, 10))
    seen = []
    for ids in Batches(packed.lengths, 1, 8, tokens=150, padded=False).of(0):
        assert len(ids) == 1 or packed.lengths[:][ids].sum() <= 150
        for rank in range(world_size):
            for piece in shard_batch(ids, pieces, rank, world_size):
                found = texts_in(packed.batch(piece.ids))
                assert sorted(found) == sorted(known[i] for i in piece.ids)
                seen += [] if piece.filler else found
    assert sorted(seen) == sorted(known)


def texts_in(batch: dict[str, torch.Tensor]) -> list[list[int]]:
    """The texts of a packed batch, separated only by their positions; without padding, of token 0."""
    found: list[list[int]] = []
    for row, positions in zip(batch["input_ids"].tolist(), batch["position_ids"].tolist(), strict=True):
        for token, position in zip(row, positions, strict=True):
            found += [[]] if position == 0 else []
            found[-1].append(token)
            assert len(found[-1]) == position + 1
    return [text for text in found if text != [0]]


def test_rows_are_filled_evenly():
    lengths = np.minimum(np.random.default_rng(0).lognormal(4.5, 0.9, 200).astype(int) + 1, 1024)
    filled = [lengths[share].sum() for share in in_rows(lengths)]
    assert sum(filled) / (max(filled) * len(filled)) > 0.98
    assert max(filled) < 2 * lengths.max()
    assert sorted(i for share in in_rows(lengths) for i in share) == list(range(200))


def test_budgets_count_real_tokens_where_nothing_is_padded():
    lengths = np.random.default_rng(0).integers(1, 400, 3000)
    packed, padded = (Batches(lengths, 3, 1, tokens=4000, padded=kind) for kind in (False, True))
    real = [lengths[ids].sum() for ids in packed.of(0)]
    assert max(real) <= 4000 and np.mean(real) > 0.93 * 4000
    assert max(lengths[ids].max() * len(ids) for ids in padded.of(0)) <= 4000
    assert len(packed.of(0)) <= len(padded.of(0))
    # in the order drawn: batches of similar lengths would only make the steps less alike
    spread = [np.mean([lengths[ids].std() for ids in kind.of(0)]) for kind in (packed, padded)]
    assert spread[0] > 5 * spread[1]


READS = """
import sys
import pyarrow  # noqa: E402
from snaketrain.data.loading.examples import TextExamples  # noqa: E402
from snaketrain.data.loading.examples import Blocks, Packed

examples = TextExamples(sys.argv[1], pad_token_id=0)
batches = examples.batch([5, 1999]), Blocks(examples, 64).batch([3, 20_000]), Packed(examples).batch([7, 8])
print([batch["input_ids"].numel() for batch in batches], pyarrow.default_memory_pool().max_memory())
"""


def test_the_text_stays_on_the_disk(tmp_path):
    """Neither a batch nor a block makes a copy of the column, of 8 MB: in a process of its own, for the peak of its memory."""
    write(tmp_path / "a.arrow", [[1] * 1000] * 2000, 100)
    scripts = {"PYTHONPATH": str(Path(__file__).parents[2] / "workflow/scripts")}
    done = subprocess.run([sys.executable, "-c", READS, tmp_path / "a.arrow"], capture_output=True, text=True, env=os.environ | scripts)
    sizes, _, peak = done.stdout.rpartition(" ")
    assert sizes == "[2000, 130, 2000]", done.stderr
    assert int(peak) < 100_000
