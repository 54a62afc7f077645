"""The nodes that a job starts without next time, where it can: a training notes them, and the job's script reads them."""

from collections.abc import Collection, Mapping
from pathlib import Path

from snaketrain.runtime.manifests import read_if_intact, write_checked

NOTED = "slow_nodes.json"


def nodes_to_avoid(folder: Path) -> Mapping[str, str]:
    """What is said of each slow node."""
    found: dict[str, str] = (read_if_intact(folder / NOTED, "no node is left out for it") or {}).get("nodes", {})
    return found


def note(folder: Path, slow: dict[str, str], measured: Collection[str]) -> None:
    """Nodes that are not part of this start keep what an earlier one has noted of them."""
    noted = nodes_to_avoid(folder)
    if (now := {host: why for host, why in noted.items() if host not in measured} | slow) != noted:
        write_checked(folder / NOTED, {"nodes": now})
