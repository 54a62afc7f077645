"""What a batch has of its examples: padding changes nothing that the model computes for each, and lists of sequences become rows."""

import pyarrow
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import BertConfig, BertForSequenceClassification

from snaketrain.data.loading.examples import TextExamples, sequences


def test_padding_changes_no_logits(tmp_path):
    texts = [[2, 7, 3], [2, 5, 9, 4, 8, 3], [2, 3], [2, 6, 4, 3]]
    rows = pyarrow.table({"input_ids": pyarrow.array(texts, pyarrow.list_(pyarrow.int32())), "label": [0, 1, 1, 0]})
    with pyarrow.ipc.new_file(str(tmp_path / "a.arrow"), rows.schema) as file:
        file.write_table(rows)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=12, initializer_range=1.0, **sizes)).eval()
    batch = TextExamples(tmp_path / "a.arrow", pad_token_id=0).batch([3, 1, 0, 2])
    assert batch["labels"].tolist() == [0, 1, 0, 1] and batch["ids"].tolist() == [3, 1, 0, 2]
    with torch.no_grad():
        together = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        alone = torch.cat([model(torch.tensor([texts[i]])).logits for i in batch["ids"]])
    assert batch["input_ids"].shape == (4, 6)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_sequences_without_values_are_taken_for_equally_long():
    """As a plan has them."""
    batch = {
        "input_ids": torch.arange(1, 13).view(2, 6),
        "attention_mask": torch.ones(2, 6, dtype=torch.long),
        "windows": torch.full((2, 2), 3),
    }
    example, place, rows = sequences(batch, "windows", {"input_ids": 0})
    assert (example.tolist(), place.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert rows["input_ids"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    with FakeTensorMode() as mode:
        planned = sequences({name: mode.from_tensor(column) for name, column in batch.items()}, "windows", {"input_ids": 0})[2]
    assert {name: column.shape for name, column in planned.items()} == {name: column.shape for name, column in rows.items()}
