"""Stage: tokenise an evaluation set as its training data was, and report its data issues; a dataset class is only counted."""

import argparse
import os
import time
from functools import partial
from pathlib import Path

from snaketrain.config.errors import placed_in
from snaketrain.config.schema import Data
from snaketrain.config.schema.base import CONTRADICTIONS_LATER
from snaketrain.config.schema.data import TEST_SET
from snaketrain.data.cells import BadData
from snaketrain.data.preparing import TrainedOn, check_classes, files_of_items, prepare, prepare_items
from snaketrain.data.reading import report_unread
from snaketrain.data.surveying import check, show
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import Manifest, read_manifest, verify, write_json
from snaketrain.runtime.strict_json import JsonObject


def main(args: argparse.Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    # read by the tokenizers library when it is first imported
    os.environ |= {"RAYON_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "true"}
    # without training data it contradicts itself, such as by naming no classes
    reading = Data.model_validate(job.given.settings["data"], context=CONTRADICTIONS_LATER)
    prepared, fetched = read_manifest(args.data), read_manifest(args.files) if args.files else None
    verify(*filter(None, (prepared, fetched)))
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        if fetched:
            facts, report, made = _prepare(args.place, reading, prepared, fetched, job.folder, args.threads)
        else:
            items = prepare_items(reading, job.folder, ("test",), args.threads)
            check_classes("data.test", items["label_names"], prepared.facts["label_names"])
            facts = report = prepared.facts | {"splits": items["splits"], "datasets": items["datasets"]}
            made = files_of_items(items)
    except ValueError as error:
        problems = str(error)
        if args.place != TEST_SET:
            problems = "\n".join(placed_in(args.place, problem.removeprefix("data.test: ")) for problem in problems.splitlines())
        raise SystemExit(f"prepare_set: {problems}") from None
    write_json(job.folder / "report.json", report)
    show(report)
    inputs = {"data": prepared.content} | ({"files": fetched.content} if fetched else {})
    job.finish(inputs, [*made, "report.json"], facts, started)


def _arguments() -> argparse.Namespace:
    parser = stages.parser("prepare_set", __doc__)
    parser.add_argument("--place", required=True, metavar="SETTING", help="where the configuration names the set, such as data.test")
    parser.add_argument("--data", required=True, metavar="MANIFEST", help="manifest of the prepared training data")
    parser.add_argument("--files", nargs="?", metavar="MANIFEST", help="manifest of the fetched files; not needed for a dataset class")
    parser.add_argument("--threads", type=int, default=1, help="number of CPU cores to use (default: %(default)s)")
    return parser.parse_args()


def _prepare(
    place: str, reading: Data, prepared: Manifest, fetched: Manifest, output: Path, threads: int
) -> tuple[JsonObject, JsonObject, list[str]]:
    root, trained_on = fetched.folder / "files", TrainedOn.read(prepared, reading)
    files = {"test": [root / file for file in fetched.facts["files"]]}
    if problems := check(reading, files):
        raise BadData("\n".join(problems))
    report_unread(files["test"], reading, place)
    found, issues = prepare(reading, files, root, prepared.folder / "tokenizer", output, threads, trained_on)
    if place != TEST_SET and reading.label is not None and not found["splits"]["test"]["labelled"]:
        raise BadData(f"no row has a label in column {reading.label!r}. Name the right column, or predict these files: set `predict`.")
    name = place.rpartition(".")[2]
    facts = prepared.facts | {"splits": found["splits"], "odd": dict(sorted(issues.counts.items()))}
    return facts, facts | {"name": name, "rows": {name: found["rows"]["test"]}, "odd": issues.report()}, ["test.arrow"]


if __name__ == "__main__":
    args = _arguments()
    stages.run(partial(main, args), args.output.parent)
