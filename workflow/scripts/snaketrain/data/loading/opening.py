"""Opens prepared data for training and evaluation.

Whatever it returns has `lengths`, one for each example, and `batch(ids, epoch)`, which gives tensors by name.
"""

from snaketrain.config.schema import Train
from snaketrain.data.loading.examples import Examples
from snaketrain.data.loading.items import Items, open_items
from snaketrain.data.loading.layouts import Blocks, Packed
from snaketrain.runtime.manifests import Manifest


def open_split(data: Manifest, split: str, train: Train) -> Examples | Items | Blocks | Packed:
    """All splits in the layout of the training, so that their losses can be compared."""
    if "datasets" in data.facts:
        return open_items(data, split, train.seed)
    examples = Examples(data.file(f"{split}.arrow"), data.facts["pad_token_id"])
    if train.block_length is None:
        return Packed(examples) if train.packing else examples
    blocks = Blocks(examples, train.block_length)
    if not len(blocks):
        raise SystemExit(f"data.{split}: has {blocks.tokens} tokens, too few to predict one from another. Give it more text.")
    return blocks
