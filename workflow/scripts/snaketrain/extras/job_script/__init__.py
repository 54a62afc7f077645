"""The training of a run as a script for sbatch, which people can read, and submit without the workflow."""

COMMANDS = {"script": ("script.py", "print the training of a run as a script for sbatch")}
