"""Repeats the first steps of a training from its record in MLflow."""

COMMANDS = {"reproduce": ("reproduce.py", "repeat the first steps of a training, and compare the losses bit by bit")}
