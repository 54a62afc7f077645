"""Takes no step twice: trainings take over the steps of others, and runs of a sweep share a trunk, which trains their first steps once."""

COMMANDS = {"diff": ("diff.py", "say at which step the weights of two runs part, and why")}
