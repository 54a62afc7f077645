"""How many nodes a training may run on: `2`, a range such as `1-4`, or `4+1` with a spare."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeCounts:
    fewest: int
    most: int
    spares: int = 0

    @classmethod
    def of(cls, text: str) -> "NodeCounts":
        number = "([1-9][0-9]{0,4})"
        if not (found := re.fullmatch(rf"{number}(?:-{number}|\+{number})?", text)):
            raise ValueError(
                f"{text!r} is not a number of nodes: write a number such as 2, a range such as 1-4, or 4+1 for four and a spare"
            )
        fewest, most, spares = (int(group) if group else None for group in found.groups())
        counts = cls(fewest or 0, most or fewest or 0, spares or 0)
        if counts.most < counts.fewest:
            raise ValueError(f"{text} goes down: write the smaller number first")
        return counts

    @property
    def varies(self) -> bool:
        """Whether a training may start on other numbers of nodes than its job asked for."""
        return self.most > self.fewest or self.spares > 0

    @property
    def asked(self) -> str:
        """What SLURM is asked for: spares are nodes like the others."""
        return f"{self.fewest}-{self.most}" if self.most > self.fewest else str(self.fewest + self.spares)

    @property
    def fewest_asked(self) -> int:
        return self.fewest + self.spares
