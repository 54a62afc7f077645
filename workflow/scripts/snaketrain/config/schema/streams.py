"""Settings that contradict a stream, which is a dataset class without a length and without indices."""

from collections.abc import Iterator

from snaketrain.config.schema.data import Data
from snaketrain.config.schema.train import Train


def stream_data_problems(data: Data) -> Iterator[str]:
    use = data.train.use if data.train else None
    if data.dev is None:
        yield f"data.dev: is missing, and nothing can be split off from data.train, since {use} is a stream. Name a dataset class with a length."
    if data.test is None and data.test_fraction:
        yield (
            f"data.test: is missing, and nothing can be split off from data.train, since {use} is a stream. Name a dataset class with a length, "
            "or set data.test_fraction to 0."
        )
    if data.limit_train is not None:
        yield f"data.limit_train: has no meaning for {use}, which is a stream. Remove it: train.steps limits what is read."


def stream_training_problems(train: Train) -> Iterator[str]:
    if train.steps is None:
        yield "train.steps: is missing. data.train is a stream, which has no length: say for how many steps it trains, instead of train.epochs."
    if train.batch_tokens is not None:
        yield "train.batch_tokens: needs lengths, which data.train does not have, since it is a stream. Use train.batch_size."
