"""A signal sets a flag; the loop asks for it between two steps. Nothing else happens in the handler."""

import signal


class Stopping:
    def __init__(self) -> None:
        self.signal: str | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: object) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C ends at once; what was saved stays whole
        self.signal = signal.Signals(number).name

    def requested(self) -> bool:
        return self.signal is not None
