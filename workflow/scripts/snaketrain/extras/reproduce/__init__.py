"""Replays steps of a training: from its record in MLflow, between its checkpoints, or up to one that is looked at."""

COMMANDS = {
    "reproduce": ("reproduce.py", "repeat the first steps of a training, and compare the losses bit by bit"),
    "verify": ("verify.py", "replay steps between checkpoints of a run, and compare weights and losses bit by bit"),
    "certify": ("certify.py", "show by replays that changed code gives the same results, so that nothing is trained again"),
    "inspect": ("inspect_step.py", "replay a run up to a step, and show what that step learns from"),
}
