"""How a training ends, as its exit code tells the one who started it."""

FAILED = 1
STOPPED_EARLY = 75  # EX_TEMPFAIL: told to stop, and saved; the same command goes on
WORTH_ANOTHER_START = 76  # nothing is wrong with the settings; the next start may do better


class WorthAnotherStart(SystemExit):
    """Ends this start of the training; what it says is told as any other failure."""
