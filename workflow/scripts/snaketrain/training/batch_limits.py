"""How much an evaluation computes at once, which its results do not depend on."""

from dataclasses import dataclass
from pathlib import Path

from snaketrain.config.schema import Train
from snaketrain.runtime.journal import last_attempt
from snaketrain.runtime.run_folder import microbatches_that_fit


@dataclass(frozen=True)
class BatchLimits:
    """Of each data parallel rank."""

    examples: int
    tokens: int | None = None

    @classmethod
    def of(cls, train: Train, microbatches: int, data_parallel_size: int) -> "BatchLimits":
        """The examples of two of a training's microbatches, since nothing is kept for a backward pass, and the tokens of one."""
        parts = microbatches * data_parallel_size
        return cls(max(1, 2 * train.batch_size // parts), train.batch_tokens and max(1, train.batch_tokens // parts))

    @classmethod
    def of_finished(cls, training: Path, train: Train) -> "BatchLimits":
        """Those of the evaluations during a training that has finished; `training`: its folder."""
        attempt = last_attempt(training / "journal.jsonl") or {}
        ranks: int = attempt.get("data_parallel_size") or attempt.get("processes", 1)  # the latter of earlier versions
        return cls.of(train, max(train.accumulate, microbatches_that_fit(training)), ranks)

    def over(self, data_parallel_size: int) -> tuple[int, int | None]:
        """The examples and tokens of all ranks together."""
        return self.examples * data_parallel_size, self.tokens and self.tokens * data_parallel_size
