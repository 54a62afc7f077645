"""Starts the processes of a training, and starts them again when some are lost: on one machine, and on the nodes of a SLURM job."""
