"""Opens prepared data for training and evaluation."""

import hashlib
from dataclasses import dataclass

import numpy as np

from snaketrain.config.schema import Train
from snaketrain.data.loading.examples import Blocks, Packed, TextExamples
from snaketrain.data.loading.items import make, open_items
from snaketrain.data.loading.streams import Stream, is_stream
from snaketrain.data.loading.training_data import TrainingData
from snaketrain.data.prepared_files import split_files
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.strict_json import JsonObject

FIRST = 100_000  # examples whose lengths are compared


@dataclass(frozen=True)
class Splits:
    """What a training reads: the two sets, and what is known of the data."""

    train: TrainingData | Stream
    dev: TrainingData
    facts: JsonObject


def open_splits(data: Manifest, train: Train) -> Splits:
    return Splits(open_training(data, train), open_split(data, "dev", train), facts_of(data))


def open_training(data: Manifest, train: Train) -> TrainingData | Stream:
    return open_stream(data, train) if data.facts["splits"]["train"].get("stream") else open_split(data, "train", train)


def open_stream(data: Manifest, train: Train) -> Stream:
    source = data.facts["datasets"]["train"]
    dataset = make(source["use"], source["arguments"], "data.train")
    if not is_stream(dataset):
        raise SystemExit(
            f"data.train: {source['use']} was a stream when the data was prepared, and has a length now. Prepare the data again."
        )
    return Stream(dataset, source["use"], data.facts["fields"], train.seed, train.batch_size)


def facts_of(data: Manifest) -> JsonObject:
    """What is known of prepared data, and the folder of its tokenizer."""
    folder = data.folder / "tokenizer"
    return data.facts | ({"tokenizer_folder": str(folder)} if folder.is_dir() else {})


def open_split(data: Manifest, split: str, train: Train) -> TrainingData:
    """A split in the layout of the training, whichever it is, so that losses can be compared."""
    if "datasets" in data.facts:
        return open_items(data, split, train.seed)
    examples = TextExamples(split_files(data, split), data.facts["pad_token_id"])
    if train.block_length is None or not len(examples):
        generates = split != "train" and train.task.arguments.get("generate") is not None  # which needs each prompt in a row of its own
        return Packed(examples) if train.packing and not generates else examples
    blocks = Blocks(examples, train.block_length)
    if not len(blocks):
        raise SystemExit(f"data.{split}: has {blocks.tokens} tokens, too few to predict one from another. Give it more text.")
    return blocks


def digest_of(data: TrainingData | Stream) -> str:
    """Tells training data apart by the number of its examples and the lengths of the first ones, without reading them all."""
    if data.lengths is None:
        return "a stream"
    return f"{len(data.lengths)} examples, {hashlib.sha256(np.asarray(data.lengths[:FIRST]).tobytes()).hexdigest()[:16]}"
