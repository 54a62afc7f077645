"""Samples the settings of runs by Optuna, as the section `search` of the configuration says."""

COMMANDS = {"sample": ("sample.py", "sample the runs of a search by Optuna")}
