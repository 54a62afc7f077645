"""Opens prepared data for training and evaluation."""

from snaketrain.config.schema import Train
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.loading.items import open_items
from snaketrain.data.loading.layouts import Blocks, Packed
from snaketrain.data.loading.training_data import TrainingData
from snaketrain.runtime.manifests import Manifest


def open_split(data: Manifest, split: str, train: Train) -> TrainingData:
    """A split in the layout of the training, whichever it is, so that losses can be compared."""
    if "datasets" in data.facts:
        return open_items(data, split, train.seed)
    examples = TextExamples(data.file(f"{split}.arrow"), data.facts["pad_token_id"])
    if train.block_length is None:
        return Packed(examples) if train.packing else examples
    blocks = Blocks(examples, train.block_length)
    if not len(blocks):
        raise SystemExit(f"data.{split}: has {blocks.tokens} tokens, too few to predict one from another. Give it more text.")
    return blocks
