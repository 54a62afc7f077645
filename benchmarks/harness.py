"""What the benchmarks share: a command line, clocks, turns, goals, and the files of figures from which docs/benchmarks.md is made.

Import it before anything of this repository: it puts the package and the tests on Python's path.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

if TYPE_CHECKING:
    from snaketrain.config.schema import Model, Train

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "workflow/scripts"
RESULTS = REPOSITORY / "benchmarks/results"
CONFIGURATION = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text(encoding="utf-8"))
LOAD = round(os.getloadavg()[0], 1)  # before the benchmark itself is a load
# Freed memory is returned at once: otherwise a peak would depend on the order of allocations
RETURNS_MEMORY = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

sys.path[:0] = [str(SCRIPTS), str(REPOSITORY / "tests")]
sys.path.append(str(REPOSITORY / "tests/unit"))


# --- the command line and the figures


def command_line(name: str, description: str | None) -> argparse.ArgumentParser:
    """With `--output`, by default results/NAME.json."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / f"{name}.json", help="file of the figures (default: %(default)s)")
    return parser


def about() -> dict[str, object]:
    """When and where something was measured; the load is the average over the minute before."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    machine = f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}, Python {platform.python_version()}"
    return {"date": time.strftime("%Y-%m-%d"), "load": LOAD, "machine": machine}


def device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else device


def write_figures(output: Path, figures: Mapping[str, object]) -> None:
    print(json.dumps(figures, indent=2))
    write(output, about() | figures)


def add_figures(output: Path, figures: Mapping[str, Mapping[str, object]]) -> None:
    """Write these tables of figures, and keep the others in the file."""
    print(json.dumps(figures, indent=2))
    kept = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else {}
    write(output, kept | {name: about() | table for name, table in figures.items()})


def write(output: Path, figures: Mapping[str, object]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"written to {output}")


def judge(goals: Mapping[str, bool]) -> NoReturn:
    """The end of a benchmark with goals."""
    print(*(f"{goal}: {'met' if met else 'missed'}" for goal, met in goals.items()), sep="\n")
    sys.exit(not all(goals.values()))


# --- measuring


class Stopwatch:
    """Counts the seconds of a clock on the wall, and the CPU seconds of this process."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._began[0], time.process_time() - self._began[1]


@dataclass(frozen=True)
class Spent:
    """By a process and all below it; the memory is that of the largest of them."""

    seconds: float
    cpu_seconds: float
    megabytes: float = 0.0
    output: str = ""


def timed(work: Callable[[], object]) -> Spent:
    """In this process."""
    watch = Stopwatch()
    work()
    return Spent(*watch.read())


def run(command: Sequence[object], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Spent:
    """With the bytecode of modules kept, as on users' machines: where that is turned off, each process compiles our package, but no other."""
    words, began = [str(word) for word in command], time.perf_counter()
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | (environment or {})
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, cwd=folder, env=given, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode, seconds = os.waitstatus_to_exitcode(status), time.perf_counter() - began
        told = [file.seek(0) or file.read() for file in (output, errors)]
    if status:
        raise SystemExit(f"{' '.join(words)[:300]} failed:\n{''.join(told)[-4000:]}")
    return Spent(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, told[0])


def in_turns(names: Sequence[str], turns: int) -> Iterator[tuple[int, str]]:
    """Each name once in a turn, in the other order every time, so that what else the machine does disturbs all of them."""
    for number in range(turns):
        yield from ((number, name) for name in (names if number % 2 else reversed(names)))


def side_by_side(ways: Mapping[str, Callable[[], Spent]], turns: int, warm_up: int = 0) -> dict[str, list[Spent]]:
    spent: dict[str, list[Spent]] = {name: [] for name in ways}
    for number, name in in_turns(list(ways), warm_up + turns):
        found = ways[name]()
        spent[name] += [found] * (number >= warm_up)
    return spent


def ratios(ours: Sequence[Spent], theirs: Sequence[Spent]) -> dict[str, float]:
    """By the clock, and of CPU time."""
    both = [[[each.seconds for each in spent], [each.cpu_seconds for each in spent]] for spent in (ours, theirs)]
    clock, cpu = map(ratio, *both)
    return {"ratio": clock, "ratio of CPU time": cpu}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the turns."""
    return round(statistics.median(own / other for own, other in zip(ours, theirs, strict=True)), 3)


def memory(field: str = "RssAnon", process: object = "self") -> int:
    """Bytes by a field of /proc; RssAnon is neither code nor pages of files, which processes share. 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


# --- what is started


def snakemake(folder: Path, *arguments: object, snakefile: Path = REPOSITORY / "Snakefile") -> list[object]:
    return [sys.executable, "-m", "snakemake", "--snakefile", snakefile, "--directory", folder, *(arguments or ("--cores", "2"))]


def torchrun(processes: int) -> list[object]:
    return [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", processes]


def training(folder: Path, data: Path, train: "Train", model: "Model", *options: object, run: str = "benchmark") -> list[str]:
    """train_model.py with its arguments, as the workflow calls it."""
    from snaketrain.runtime.stages import settings_words

    words = ["--run-name", run, "--data", data, "--output", folder / "manifest.json", "--device", "cpu", *options]
    settings = settings_words(folder, "train_model", {"train": train.as_json, "model": model.as_json})
    return [*map(str, [SCRIPTS / "train_model.py", *words]), *settings]


def pretrained_file(name: str) -> Path:
    """Of the default configuration's model, such as `tokenizer.json`."""
    from snaketrain.config.schema import Source
    from snaketrain.data.fetching import source_files

    source: dict[str, Any] = CONFIGURATION["data"]["tokenizer"] | {"sha256": {}}
    return next(file for file in source_files(Source(**source)) if file.name == name)


def project(folder: Path, config: Mapping[str, object]) -> Path:
    (folder / "config").mkdir(parents=True)
    (folder / "config/config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return folder
