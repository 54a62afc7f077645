"""What the workflow itself costs, where there is nothing to do and where there is much to plan.

1. `snakemake` on finished results, against `snakemake` on a finished Snakefile of one rule: goal 1.3 times.
2. A dry run of a sweep of 200 runs, and of 1,000: goals 6 and 15 seconds of CPU time.
"""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import command_line, write_figures

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from pipeline.workspace import configuration, make_workspace, snakemake, write_configuration  # noqa: E402

ONE_RULE = 'rule all:\n    output:\n        "done.txt",\n    shell:\n        "touch {output}"\n'
GOALS = {"nothing to do, CPU": 1.3, "nothing to do, wall": 1.3, "dry run of 200 runs, CPU": 6.0, "dry run of 1000 runs, CPU": 15.0}


def measured(folder: Path, snakefile: Path, *arguments: str) -> tuple[float, float]:
    """Seconds of CPU, with all processes below, and of the clock."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile), "--directory", str(folder), "--cores", "2", *arguments]
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    wall, after = time.perf_counter() - started, os.times()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    if not arguments and "Nothing to be done" not in done.stderr:
        raise SystemExit(f"There was something to be done, so that this measures something else:\n{done.stderr[-4000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, wall


def nothing_to_do(folder: Path, pairs: int) -> dict[str, float]:
    """Both in turn, so that whatever else the machine does hits both."""
    ours, plain = make_workspace(folder / "ours"), folder / "plain"
    plain.mkdir()
    (plain / "Snakefile").write_text(ONE_RULE)
    snakemake(ours)
    subprocess.run([sys.executable, "-m", "snakemake", "--cores", "1"], check=True, capture_output=True, cwd=plain)
    times = [(measured(ours, REPOSITORY / "Snakefile"), measured(plain, plain / "Snakefile")) for _ in range(pairs)]
    found = {}
    for number, clock in enumerate(("CPU", "wall")):
        mine, theirs = ([pair[side][number] for pair in times] for side in (0, 1))
        found |= {f"workflow, {clock} seconds": statistics.median(mine), f"one rule, {clock} seconds": statistics.median(theirs)}
        found[f"nothing to do, {clock}"] = statistics.median(m / t for m, t in zip(mine, theirs, strict=True))
    return found


def planning(folder: Path, runs: int, repeats: int) -> dict[str, float]:
    sweep = {"rate": {"train.learning_rate": [i / 1e5 for i in range(1, runs // 10 + 1)], "train.seed": list(range(10))}}
    make_workspace(folder)
    write_configuration(folder, configuration() | {"runs": {}, "sweeps": sweep})
    times = [measured(folder, REPOSITORY / "Snakefile", "--dry-run") for _ in range(repeats)]
    return {f"dry run of {runs} runs, {clock}": statistics.median(t[number] for t in times) for number, clock in enumerate(("CPU", "wall"))}


def machine() -> str:
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    versions = f"Python {platform.python_version()}, snakemake {importlib.metadata.version('snakemake')}"
    return f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}, {versions}"


def main() -> None:
    parser = command_line("overhead", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="repetitions of the first comparison (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of the dry run (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        found = nothing_to_do(Path(folder), args.pairs)
        for runs in (200, 1000):
            found |= planning(Path(folder) / f"sweep-{runs}", runs, args.repeats)
    for name, value in found.items():
        goal = f"   goal {GOALS[name]:g}: {'met' if value <= GOALS[name] else 'missed'}" if name in GOALS else ""
        print(f"{name:28} {value:6.2f}{goal}")
    when = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "pairs": args.pairs, "repeats": args.repeats}
    write_figures(args.output, when | {name: round(value, 3) for name, value in found.items()})


if __name__ == "__main__":
    main()
