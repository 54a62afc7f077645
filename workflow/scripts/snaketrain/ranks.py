"""Which of the training's processes this one is, from what the launcher left in the environment.

torchrun's names are always read; those of other launchers only where `compute.launcher` is `env`: a job script under SLURM,
for example, sees SLURM's names as well, and is none of the processes.
"""

import os
from dataclasses import dataclass

# rank, number of processes, rank on this machine
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
# Open MPI, MPICH and Intel MPI, PALS (aprun, PBS), SLURM's srun
OTHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PALS_RANKID", "PALS_SIZE", "PALS_LOCAL_RANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world_size: int = 1
    local: int = 0

    @classmethod
    def of_environment(cls) -> "Ranks":
        others = OTHERS if os.environ.get("SNAKETRAIN_RANKS") == "environment" else ()
        for rank, size, local in (TORCHRUN, *others):
            if rank in os.environ and size in os.environ:
                return cls(int(os.environ[rank]), int(os.environ[size]), int(os.environ.get(local, "0")))
        return cls()

    def export(self) -> None:
        """Under the names that torch.distributed reads."""
        names = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "LOCAL_RANK": self.local}
        os.environ.update({name: str(value) for name, value in names.items()})
