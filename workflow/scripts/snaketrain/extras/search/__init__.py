"""Trains most runs of a sweep only a part of the way, and samples runs by Optuna, as the section `search` of the configuration says."""

COMMANDS = {"sample": ("sample.py", "sample the runs of a search by Optuna")}
