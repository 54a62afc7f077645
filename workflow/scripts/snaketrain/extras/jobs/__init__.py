"""What the runs of a folder are at, their logs, and how to cancel one."""

COMMANDS = {
    "status": ("jobs.py status", "show what each run is at"),
    "log": ("jobs.py log", "print the log of a run's job"),
    "cancel": ("jobs.py cancel", "save and end the jobs of runs"),
}
