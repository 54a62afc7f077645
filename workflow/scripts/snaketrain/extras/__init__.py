"""Features that the core runs without. Each folder here is one: delete it, and everything else works.

An extra may import the core, and never the other way round: the core asks each folder for what it adds (`orchestration/extras.py`).
"""
