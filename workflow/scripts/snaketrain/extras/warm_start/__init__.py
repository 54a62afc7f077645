"""Stages on this machine begin with torch and transformers loaded: they are forked from a process that has imported them."""
