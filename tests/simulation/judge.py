"""What must hold in each history, noted while it runs."""

from pathlib import Path

from simulation.virtual_time import Process, World


class Judge:
    def __init__(self, world: World):
        self.world = world
        self.signed: dict[str, Process] = {}  # the process that signed a folder last
        self.takeovers = self.refused = 0

    def signs(self, folder: Path, process: Process) -> None:
        before = self.signed.get(str(folder))
        self.takeovers += before is not None and before is not process and before.alive
        self.signed[str(folder)] = process

    def writes(self, folder: Path, process: Process) -> None:
        owner = self.signed.get(str(folder))
        if owner is not process:
            self.world.problem(f"two writers: {who(process)} wrote to {folder}, which {who(owner)} had taken over")


def who(process: Process | None) -> str:
    if process is None:
        return "nobody"
    return f"process {process.pid} on {process.host} (job {process.environment.get('SLURM_JOB_ID')})"
