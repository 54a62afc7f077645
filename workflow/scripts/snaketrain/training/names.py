"""Sums over all ranks by name, which every rank must have: they are added one after the other."""

from snaketrain.strategies.base import Strategy


def check_names(strategy: Strategy, names: list[str], method: str) -> None:
    """Exit on all ranks if some have other names. Otherwise ranks would add different sums, or block in a collective."""
    if any(others != names for others in strategy.all_gather_object(names)):
        raise SystemExit(
            f"train.task.use: `{method}` has not returned the same names in all processes; here {', '.join(names)}. Return all names in each "
            "batch, in the same order, with zeros for what a batch has nothing of."
        )
