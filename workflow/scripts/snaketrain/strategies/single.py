"""One process on one device."""

from snaketrain.strategies.base import Strategy


class Single(Strategy):
    replicates_model = True
    trains_adapters = True
