"""How much host memory the processes of one machine need for a model that is sharded over them.

Four processes train a Llama under fsdp: until the first step, resuming from a checkpoint until the next step, and to the end, where
rank 0 gathers and saves everything; with and without `build_once`. A process's own memory
(RssAnon: neither code nor pages of files, which the processes share) is sampled every few milliseconds, and its maximum is
reported relative to the size of the model's parameters (fp32), minus what the same training needs for a tiny model.
The optimizer's state is twice as large as the parameters.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "workflow/scripts"
sys.path[:0] = [str(REPOSITORY / "tests"), str(SCRIPTS)]

from pipeline.workspace import prepared  # noqa: E402

from snaketrain.config.runs import strings  # noqa: E402
from snaketrain.config.schema import Model, Train  # noqa: E402
from snaketrain.runtime.job_settings import settings_words  # noqa: E402
from snaketrain.runtime.journal import read_events  # noqa: E402

PROCESSES, POLL_SECONDS, DEADLINE_SECONDS = 4, 0.005, 600
# freed memory is returned at once: otherwise the result would depend on the order of allocations
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
EXECUTION_ONLY = {"each builds": False, "the first builds": True}
# steps, whether it starts fresh, and whether it is stopped at its first step
CASES = {
    "until the first step": (2, True, True),
    "to the end, with a save": (2, True, False),
    "going on, until the next step": (4, False, True),
}


def llama(width: int, layers: int) -> Model:
    sizes = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    }
    return Model(use="transformers.LlamaForSequenceClassification", arguments=sizes)


def command(data: Path, folder: Path, model: Model, steps: int, build_once: bool) -> list[str]:
    strategy = {"use": "fsdp", "arguments": {"build_once": build_once}}
    train = Train(batch_size=8, steps=steps, schedule="constant", warmup=0, evaluate_every=10**9, strategy=strategy)
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(PROCESSES)]
    paths = ["--run-name", "memory", "--data", str(data), "--output", str(folder / "manifest.json"), "--log-every", "1", "--device", "cpu"]
    settings = settings_words(folder, "train_model", [*strings("train", train), *strings("model", model)])
    return [*torchrun, str(SCRIPTS / "train_model.py"), *paths, *settings]


def peaks(words: list[str], folder: Path, until_first_step: bool) -> list[int]:
    """The most memory of its own that each process had, in order of their sizes: until the first step, at which they are stopped, or the end."""
    log = folder.with_suffix(".log")
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env=os.environ | ENVIRONMENT)
        most: dict[str, int] = {}
        before, end = attempts(folder), time.monotonic() + DEADLINE_SECONDS
        while process.poll() is None and time.monotonic() < end and not (until_first_step and attempts(folder) > before):
            for _ in range(20):  # to read the journal takes longer than to look
                for child in children(process.pid):
                    most[child] = max(most.get(child, 0), own_bytes(child))
                time.sleep(POLL_SECONDS)
        process.send_signal(signal.SIGTERM)
        process.wait()
    if attempts(folder) == before or not (until_first_step or (folder / "manifest.json").is_file()):
        raise SystemExit(f"it did not come so far:\n{log.read_text(encoding='utf-8')[-4000:]}")
    return sorted(most.values(), reverse=True)[:PROCESSES]


def attempts(folder: Path) -> int:
    journal = folder / "journal.jsonl"
    return sum(event["event"] == "attempt" for event in read_events(journal)[0]) if journal.is_file() else 0


def children(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []


def own_bytes(process: str) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="hidden size of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="layers of the model (default: %(default)s)")
    parser.add_argument(
        "--output",
        type=Path,
        default=REPOSITORY / "benchmarks/results/sharing_memory.json",
        help="where to write the figures (default: %(default)s)",
    )
    args = parser.parse_args()
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "processes": PROCESSES}
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        folder = Path(name)
        data = prepared(folder / "workspace")
        models = {"nothing": llama(16, 2), "model": llama(args.width, args.layers)}
        for way, build_once in EXECUTION_ONLY.items():
            most: dict[str, list[list[int]]] = {what: [] for what in CASES}
            for kind, model in models.items():
                place = folder / f"{kind}, {way}"
                for what, (steps, fresh, until_first_step) in CASES.items():
                    if fresh:
                        shutil.rmtree(place, ignore_errors=True)
                    most[what].append(peaks(command(data, place, model, steps, build_once), place, until_first_step))
            newest = max((place / "checkpoints").glob("step-*"))
            weights = sum(file.stat().st_size for file in newest.glob("weights/*.distcp"))  # fsdp saves in shards
            found |= {"parameters, MB": round(weights / 1e6), way: {}}
            for what, (nothing, whole) in most.items():
                found[way][what] = [round((large - small) / weights, 2) for small, large in zip(nothing, whole, strict=True)]
                print(f"{way}, {what}: {found[way][what]}", file=sys.stderr, flush=True)
            shutil.rmtree(place)
    print(json.dumps(found, indent=2))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
