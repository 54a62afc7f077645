"""Results of trainings: metrics, plots, and the comparison of runs."""
