"""What torchrun loads by the entry point `torchrun.handlers`, as does every program that imports torch's rendezvous.

So nothing of the package is imported here, unless a launcher of ours has started this torchrun.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

ENDING_FILE = "SNAKETRAIN_ENDING_FILE"  # set by launch_local.py: where to write how the processes ended


def rendezvous() -> object:
    if path := os.environ.pop(ENDING_FILE, None):
        from snaketrain.launch.torchrun_plugin import report_to_file

        report_to_file(path)
    return on_nodes


def on_nodes(parameters: "RendezvousParameters") -> "RendezvousHandler":
    from snaketrain.launch.torchrun_plugin import NodeRendezvous

    return NodeRendezvous(parameters)
