"""What is learnt: one file for each task. A task is written as if for one process and one device."""
