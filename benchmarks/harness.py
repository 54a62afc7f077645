"""What the benchmarks share: a command line, a stopwatch, and the files of figures from which docs/benchmarks.md is made."""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def command_line(name: str, description: str | None) -> argparse.ArgumentParser:
    """With `--output`, by default results/NAME.json."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / f"{name}.json", help="file of the figures (default: %(default)s)")
    return parser


def write_figures(output: Path, figures: Mapping[str, object]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"written to {output}")


def add_figures(output: Path, figures: Mapping[str, object]) -> None:
    """Write these figures, and keep the others in the file."""
    write_figures(output, (json.loads(output.read_text(encoding="utf-8")) if output.is_file() else {}) | figures)


class Stopwatch:
    """Counts the seconds of a clock on the wall, and the CPU seconds of this process."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._began[0], time.process_time() - self._began[1]
