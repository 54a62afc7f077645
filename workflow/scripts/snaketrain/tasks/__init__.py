"""What is learnt: one file for each task. A task thinks of one process and one device."""
