"""Creating models, and finding the parts of them that tasks and strategies need."""
