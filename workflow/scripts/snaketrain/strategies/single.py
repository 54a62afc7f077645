"""One process on one device."""

from snaketrain.strategies.base import Strategy


class Single(Strategy):
    trains_adapters = True
