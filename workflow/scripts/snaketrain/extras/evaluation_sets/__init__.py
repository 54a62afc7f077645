"""Evaluates the selected model of each run, or all checkpoints that it has kept, on further sets of examples: those of the section `evaluation_sets`."""
