"""Sentence embeddings: pairs of texts that belong together, and a task that tells each answer from those of all other pairs in a batch."""
