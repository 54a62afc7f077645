"""Signals that ask the training to stop only set a flag, which the loop checks between two steps."""

import signal

# signals that a launcher passes on to its processes instead of dying from them, and how long it waits before it kills the processes
LAUNCHER_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
SECONDS_TO_SAVE = 600


class Stopping:
    def __init__(self) -> None:
        self.signals: list[str] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if name == "SIGINT" and name in self.signals:
            raise KeyboardInterrupt  # a second Ctrl-C ends at once; checkpoints stay intact
        self.signals.append(name)

    def requested(self) -> bool:
        return bool(self.signals)
