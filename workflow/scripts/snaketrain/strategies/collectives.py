"""Which collectives a rank has entered, as torch's flight recorder has them: they tell which rank keeps the others waiting."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch.distributed as dist

RECORDED = "2000"  # collectives, the last ones; torch records none by itself


class Collective(NamedTuple):
    """All ranks of a group enter the same one under the same number, which torch calls the sequence number."""

    number: int
    group: str
    description: str  # of the group, such as a dimension of the mesh
    operation: str
    ranks: tuple[int, ...]  # of the group

    @property
    def name(self) -> str:
        """`all_reduce 1,204`, or `all_gather 12 of mesh_shard`."""
        return f"{self.operation} {self.number:,}" + (f" of {self.description}" if self.description else "")


@dataclass(frozen=True)
class Collectives:
    """Of one rank: the number of the last one that it has entered, by group; and those that have not ended."""

    last: Mapping[str, int] = field(default_factory=dict)
    unfinished: Sequence[Collective] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Collectives":
        found = json.loads(text)
        unfinished = [
            Collective(number, group, name, operation, tuple(ranks)) for number, group, name, operation, ranks in found["unfinished"]
        ]
        return cls(found["last"], unfinished)


def record_collectives() -> None:
    """Before the process group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", RECORDED)


def recorded_collectives() -> Collectives:
    """Of this rank. Any thread may ask, while another one waits in a collective."""
    members = {group.group_name: tuple(ranks) for group, ranks in dist.distributed_c10d._world.pg_group_ranks.items()}
    last, unfinished = dict[str, int](), list[Collective]()
    for entry in recorded():
        if entry["is_p2p"]:
            continue
        backend, _, operation = entry["profiling_name"].partition(":")
        (name, description), number = entry["process_group"], entry["collective_seq_id"]
        group = f"{backend} {name}"  # gloo and NCCL count those of a group separately
        last[group] = max(number, last.get(group, 0))
        if not entry["retired"]:
            described = {"default_pg": "", "undefined": name}.get(description, description)
            unfinished.append(Collective(number, group, described, operation, members.get(name, ())))
    return Collectives(last, unfinished)


def recorded() -> Iterator[dict[str, Any]]:
    """The last entries of torch's flight recorders: of NCCL, in a build for GPUs, and of other backends. Not part of torch's public interface."""
    from torch._C import _distributed_c10d as c10d

    for dump in filter(None, (getattr(c10d, "_dump_fr_trace_json", None), getattr(c10d, "_dump_nccl_trace_json", None))):
        yield from json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", ())
