"""Uploads the selected model of a run to the Hugging Face hub."""

COMMANDS = {"publish": ("publish.py", "upload a run's selected model to the Hugging Face hub")}
