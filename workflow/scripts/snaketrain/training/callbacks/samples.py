"""Records what a task shows of an evaluation in words, such as generated answers: in the journal and in the log."""

import json
import logging

from snaketrain.runtime.journal import Journal
from snaketrain.training.callbacks.base import Callback
from snaketrain.training.state import TrainState

MOST_CHARACTERS = 300  # of a text in the log; the journal has all of it


class Samples(Callback):
    """Written by the first rank, from the examples that it evaluates."""

    def __init__(self, journal: Journal):
        self.journal = journal

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        samples = state.task.samples()
        if state.rank > 0 or not samples:
            return
        self.journal.write("samples", step=state.step, samples=samples)
        for sample in samples:
            logging.info("step %d: %s", state.step, ", ".join(f"{name} {shortened(value)}" for name, value in sample.items()))


def shortened(value: object) -> str:
    """On one line, whatever the text contains."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
