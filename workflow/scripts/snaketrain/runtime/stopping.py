"""A signal sets a flag; the loop asks for it between two steps. Nothing else happens in the handler."""

import signal


class Stopping:
    def __init__(self) -> None:
        self.signals: list[str] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if name == "SIGINT" and name in self.signals:
            raise KeyboardInterrupt  # a second Ctrl-C ends at once; what was saved stays whole
        self.signals.append(name)

    def requested(self) -> bool:
        return bool(self.signals)
