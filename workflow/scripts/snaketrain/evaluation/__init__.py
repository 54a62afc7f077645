"""Results of trainings: metrics, plots, and the comparison of runs."""

from collections.abc import Sequence

# of configurations, on the page and wherever else runs are drawn: distinct for the colour-blind (after Okabe and Ito)
COLOURS = ("#0072B2", "#D55E00", "#007A5A", "#A8508A", "#8A6D00", "#2F8FC4", "#444444")  # dark enough on white


def colours_of_runs(configurations: Sequence[Sequence[str]]) -> dict[str, str]:
    """The colour of each run by its name; the runs of a configuration, given best first, share one."""
    return {run: COLOURS[number % len(COLOURS)] for number, runs in enumerate(configurations) for run in runs}
