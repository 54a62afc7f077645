"""Sources and targets of sequence to sequence models: two sequences for each example, each with special tokens and a length of its own."""

import pyarrow
import pyarrow.compute

from snaketrain.config.schema import Data
from snaketrain.data.tokenization.tokenizer import BatchTokenizer


class TargetTokenizer(BatchTokenizer):
    def __init__(self, source: BatchTokenizer, target: BatchTokenizer):
        self.source, self.target = source, target

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        source = self.source.encode_batch(texts.select(["text"]))
        target = self.target.encode_batch(pyarrow.record_batch({"text": texts["target"]}))
        columns = {"input_ids": source["input_ids"], "target_ids": target["input_ids"]}
        return pyarrow.record_batch(columns | {"truncated": pyarrow.compute.or_(source["truncated"], target["truncated"])})


def source_and_target(data: Data) -> tuple[Data, Data]:
    """The settings by which each of the two is encoded like a text by itself; only targets end with `end_token`."""
    source = data.model_copy(update={"target": None, "end_token": None})
    return source, data.model_copy(update={"target": None, "max_length": data.max_target_length})
