"""Opens prepared data for training and evaluation.

Whatever it returns has `lengths`, one for each example, and `batch(ids, epoch)`, which gives tensors by name.
"""

from snaketrain.data.examples import Examples
from snaketrain.manifests import Manifest


def open_split(data: Manifest, split: str) -> Examples:
    return Examples(data.file(f"{split}.arrow"), data.facts["pad_token_id"])
