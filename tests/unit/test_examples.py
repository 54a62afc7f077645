"""Padding examples of a batch does not change what the model computes for each."""

import pyarrow
import torch
from transformers import BertConfig, BertForSequenceClassification

from snaketrain.data.loading.examples import TextExamples


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
