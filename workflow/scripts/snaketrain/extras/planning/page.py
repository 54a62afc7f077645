"""A plan as text."""

from collections.abc import Iterator

from snaketrain.extras.planning.estimates import CONTEXT_GIB, FRAGMENTED, GIB, NCCL_GIB, Estimate
from snaketrain.extras.planning.ledger import PARTS
from snaketrain.extras.planning.proposals import Proposal, described
from snaketrain.extras.planning.rates import Rate
from snaketrain.runtime.strict_json import JsonObject

PHASES = {
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "update": "the update",
    "evaluation: forward": "an evaluation",
    "evaluation: loss": "an evaluation",
    "between": "between two steps",
}


def lines(name: str, estimate: Estimate, rate: Rate | None) -> Iterator[str]:
    """All about one run."""
    footprint, compute, train = estimate.footprint, estimate.settings.compute, estimate.settings.train
    processes = f"{estimate.processes} process{'es' if estimate.processes > 1 else ''}"
    yield f"{name}: {amount(footprint.parameters)} parameters, {train.strategy.use}, {processes}, {estimate.precision}"
    if estimate.assumed:
        yield f"  assumed      {estimate.assumed}"
    yield f"  memory       {size(estimate.peak)} per process at most, in {PHASES.get(footprint.phase, footprint.phase)}{verdict(estimate)}"
    parts = {part: footprint.parts[part] for part in PARTS if footprint.parts[part] >= 0.001 * footprint.peak}
    parts |= {"outside of tensors": estimate.overhead} if estimate.overhead else {}
    yield "               " + ", ".join(f"{part} {size(value)}" for part, value in sorted(parts.items(), key=lambda item: -item[1]))
    uses = ["build the model"] * bool(estimate.builders) + [f"{'copy' if estimate.sharded else 'gather'} a checkpoint"]
    host = f"{size(estimate.host_memory)} per node to {' or '.join(uses)}" + " beside the offloaded shards" * bool(estimate.offloaded)
    asked = compute.memory_mb * 2**20
    yield f"  host         {host}" + (f", MORE than compute.memory_mb asks for ({size(asked)})" if estimate.host_memory > asked else "")
    yield f"  a step       {amount(footprint.flops)}FLOP per process" + exchanged(estimate)
    yield f"  checkpoints  {size(estimate.checkpoint)} in {estimate.checkpoint_files} files; {compute.keep_checkpoints + 1} are kept: {size(estimate.stored)}"
    yield f"  training     {training(estimate, rate)}"
    if compute.processes > 1 and not estimate.on_gpu:
        yield "  on CPUs      one process with all threads, compute.processes: 1, is as fast or faster (docs/benchmarks.md)"


def verdict(estimate: Estimate) -> str:
    if estimate.limit is None:
        return ""
    return f": {'fits' if estimate.fits else 'does NOT fit'} into {size(estimate.limit)}"


def exchanged(estimate: Estimate) -> str:
    found = {name: of_name for name, of_name in estimate.footprint.exchanged.items() if of_name >= 2**10}
    return "".join(f"; {name} {size(of_name)}" for name, of_name in sorted(found.items(), key=lambda item: -item[1]))


def training(estimate: Estimate, rate: Rate | None) -> str:
    if estimate.steps is None or estimate.flops is None:
        return "steps and time are unknown until the data is prepared: use the target `plan`, which prepares it"
    most = "at most " if estimate.assumed else ""
    return f"{estimate.steps:,} steps, {most}{amount(estimate.flops)}FLOP{duration(estimate, estimate.flops, rate)}"


def duration(estimate: Estimate, flops: float, rate: Rate | None) -> str:
    if rate is None:
        return "; --gpu-tflops gives a time"
    shortest, longest = estimate.hours(flops, rate.high), estimate.hours(flops, rate.low)
    what, count = "GPU" if estimate.on_gpu else "process", estimate.processes
    cost = f", {between(shortest * count, longest * count)} of {what} time" if count > 1 else ""
    return f"; {between(shortest, longest)}{cost}, without evaluations and saving ({rate.source})"


def between(shortest: float, longest: float) -> str:
    ends = dict.fromkeys((hours(shortest), hours(longest)))  # once, where they are the same in these words
    return " to ".join(ends)


def proposed(found: Proposal | None) -> str:
    if found is None:
        return "  proposal     nothing that was tried fits: take a smaller model, shorter texts or GPUs with more memory"
    return f"  proposal     {described(found.changes)}: {size(found.estimate.peak)} per process"


def assumptions(estimates: list[Estimate]) -> str:
    """What is not measured; nothing without GPUs."""
    if not any(estimate.on_gpu for estimate in estimates):
        return ""
    return (
        f"Outside of tensors, {CONTEXT_GIB:g} GiB for CUDA, {NCCL_GIB:g} GiB for NCCL and {FRAGMENTED:.0%} for fragmentation are assumed. "
        "Figures were compared with real trainings on CPUs, not on GPUs."
    )


def size(number_of_bytes: float) -> str:
    return f"{number_of_bytes / GIB:.1f} GiB" if number_of_bytes >= 0.95 * GIB else f"{number_of_bytes / 2**20:.1f} MiB"


def amount(number: float) -> str:
    """1.2 B, 3.4 T: with a letter for thousands; `T ` for FLOP."""
    for letter, unit in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= unit:
            return f"{number / unit:.1f} {letter}"
    return f"{number:.0f} "


def hours(number: float) -> str:
    if number < 1 / 60:
        return f"{number * 3600:.0f} s"
    if number < 1:
        return f"{number * 60:.0f} min"
    return f"{number:.1f} h" if number < 48 else f"{number / 24:.1f} days"


def figures(estimate: Estimate) -> JsonObject:
    """The same for programs, in bytes."""
    footprint = estimate.footprint
    return {
        "processes": estimate.processes, "precision": estimate.precision, "parameters": footprint.parameters, "peak": estimate.peak,
        "phase": footprint.phase, "parts": footprint.parts, "outside of tensors": estimate.overhead, "host": estimate.host_memory,
        "flops of a step": footprint.flops, "flops": estimate.flops, "exchanged": footprint.exchanged, "checkpoint": estimate.checkpoint,
        "limit": estimate.limit, "fits": estimate.fits, "cannot fit": estimate.cannot_fit, "assumed": estimate.assumed,
    }  # fmt: skip
