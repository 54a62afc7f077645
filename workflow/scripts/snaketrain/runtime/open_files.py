"""The limit on open files, of which every connection is one."""

import resource

PER_RANK = 4  # connections of each rank to the rendezvous store: one of gloo, others of NCCL; an upper bound
OWN = 256  # what the process has open besides


def needed(world_size: int) -> int:
    """The number of open files of the process that hosts the rendezvous store; all others need a few dozen."""
    return PER_RANK * world_size + OWN


def raise_limit(world_size: int) -> str | None:
    """Raise this process's soft limit to the hard one if the ranks may need it; returns a warning if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed(world_size) <= soft or soft == resource.RLIM_INFINITY:
        return None
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= needed(world_size):
        return None
    return (
        f"{world_size} ranks may need {needed(world_size)} open files in the process that they all connect to, and the limit is {hard}. If the "
        "training cannot start, ask the administrator of this machine for a higher one (`ulimit -Hn`)."
    )
