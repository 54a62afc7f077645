"""How fast one process computes: as in finished trainings of the same machine, or a range that is assumed."""

import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from snaketrain.extras.planning.estimates import Estimate
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import read_if_intact

ASSUMED_SHARE = 0.2, 0.5  # of a GPU's peak that a training reaches
SHARE_OF_PRODUCT = 0.4, 0.9  # on CPUs, of the rate of a matrix product; measured: 0.64 to 0.81
SIDE, TIMES = 1024, 4


@dataclass(frozen=True)
class Rate:
    """Floating-point operations per second and process, as a range."""

    low: float
    high: float
    source: str


def rate_of(estimates: dict[str, Estimate], results: Path, tflops: float | None) -> Rate | None:
    """`tflops`: the peak of one GPU. None where nothing is known of it."""
    known = {name: found for name, each in estimates.items() if (found := measured_rate(each, results / "runs" / name / "training"))}
    if known:
        return Rate(min(known.values()), max(known.values()), f"measured in {', '.join(sorted(known))}")
    if tflops is not None:
        low, high = (share * tflops * 1e12 for share in ASSUMED_SHARE)
        return Rate(low, high, f"assumed: {ASSUMED_SHARE[0]:.0%} to {ASSUMED_SHARE[1]:.0%} of {tflops:g} TFLOP/s")
    if any(each.on_gpu for each in estimates.values()):
        return None
    product = rate_of_product()
    low, high = (share * product for share in SHARE_OF_PRODUCT)
    return Rate(
        low,
        high,
        f"{SHARE_OF_PRODUCT[0]:.0%} to {SHARE_OF_PRODUCT[1]:.0%} of a matrix product's {product / 1e9:.0f} GFLOP/s on this machine",
    )


def measured_rate(estimate: Estimate, training: Path) -> float | None:
    """Of a training under the same settings, from its journal; the first lines include warm-up. Not by texts of an assumed length."""
    about = read_if_intact(training / "run.json", "its speed is not used")
    if estimate.assumed or about is None or about.get("environment", {}).get("processes") != estimate.processes:
        return None
    events, _ = read_events(training / "journal.jsonl")
    rates = [event["metrics"].get("examples_per_second", 0.0) for event in events if event["event"] == "train"]
    rates = [rate for rate in rates[1:] or rates if rate and math.isfinite(rate)]
    if not rates:
        return None
    return estimate.footprint.flops * estimate.mean_size / estimate.examples * float(statistics.median(rates))


def rate_of_product() -> float:
    """Floating-point operations per second of a product of two matrices, with the threads that this process has."""
    import torch

    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    left @ right
    began = time.perf_counter()
    for _ in range(TIMES):
        left @ right
    return 2 * SIDE**3 * TIMES / (time.perf_counter() - began)
