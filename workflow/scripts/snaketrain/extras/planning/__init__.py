"""What a training will need, before it waits in a queue: memory by part, floating-point operations, bytes exchanged, checkpoints, time.

The real task, model and strategy code runs as rank 0 of any number of processes, with torch's fake process group and fake tensors,
which have shapes but no memory. So a changed strategy changes the plan, and a laptop plans for 1,024 GPUs.
"""

COMMANDS = {"plan": ("plan.py", "say what each run will need: memory, bytes exchanged, checkpoints, time")}
