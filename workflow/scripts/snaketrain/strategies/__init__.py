"""How processes share one training: a file for each way, all with the interface of `base.Strategy`.

Each class declares what it needs; `orchestration/strategy_declarations.py` reads that without importing torch.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from snaketrain.config.references import load
from snaketrain.runtime.ranks import Ranks

if TYPE_CHECKING:
    from snaketrain.strategies.base import Strategy


def make_strategy(use: str, arguments: Mapping[str, object], *, device: str, precision: str) -> "Strategy":
    """The strategy of this process, which trains or evaluates; one that cannot run on the device says so."""
    name = use if use != "auto" else "ddp" if Ranks.of_environment().world_size > 1 else "single"
    strategy: Strategy = load(name, "strategies")(**arguments, device=device, precision=precision)
    kind = strategy.device.type
    if kind not in strategy.devices:
        needs = "needs GPUs" if kind == "cpu" else "runs on the CPU only"
        remedy = "use `fsdp`, which needs none" if kind == "cpu" else "set compute.device: cpu, or use another strategy"
        raise SystemExit(f"train.strategy `{use}` {needs}, and the device is {strategy.device}: {remedy}.")
    return strategy
