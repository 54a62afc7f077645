"""Batches of examples from several training sets, in shares that may change from phase to phase."""
