"""Scores the selected language model of each run on tasks of EleutherAI's lm-evaluation-harness: those of the section `lm_eval`."""
