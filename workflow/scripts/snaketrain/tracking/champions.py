"""Which model gets the alias `champion`: decided by the selection metric alone, and only among models of the same data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Contender:
    run: str
    value: float
    metric: str
    mode: str  # max or min
    data: str  # digest of its content

    def comparable(self, other: "Contender") -> bool:
        return (self.metric, self.mode, self.data) == (other.metric, other.mode, other.data)

    @property
    def rank(self) -> float:
        """Higher is better."""
        return self.value if self.mode == "max" else -self.value

    def beats(self, other: "Contender") -> bool:
        return self.rank > other.rank


@dataclass(frozen=True)
class Decision:
    registers: bool
    moves_alias: bool
    reason: str


def decide(new: Contender, registered: list[Contender], champion: Contender | None) -> Decision:
    """Only a model that beats all earlier ones on the same data is registered."""
    rivals = [other for other in registered if new.comparable(other)]
    ahead = next((other for other in rivals if not new.beats(other)), None)
    if ahead:
        return Decision(False, False, f"{new.metric} {new.value:.6g} is not better than {ahead.value:.6g} of {ahead.run}")
    if champion is None:
        return Decision(True, True, f"the first model: {new.metric} {new.value:.6g}")
    if not new.comparable(champion):
        other = "other data" if new.data != champion.data else f"{champion.metric}, not {new.metric}"
        return Decision(True, False, f"{champion.run} stays champion: it was chosen on {other}. Move the alias by hand to replace it.")
    return Decision(True, True, f"{new.metric} {new.value:.6g} is better than {champion.value:.6g} of {champion.run}")
