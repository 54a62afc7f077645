"""Stage: split the raw data, tokenise it, and report its data issues; a dataset class is only split."""

import argparse
import os
import time
from functools import partial
from pathlib import Path

from snaketrain.config.schema import Data
from snaketrain.data import preparing
from snaketrain.data.reading import report_unread
from snaketrain.data.surveying import check, show
from snaketrain.data.tokenizer_files import copy_tokenizer, end_token_id, pad_token_id, tokenizer_folder, vocabulary
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import adopt, read_manifest, verify, write_json
from snaketrain.runtime.strict_json import JsonObject


def main(args: argparse.Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    # read by the tokenizers library when it is first imported
    os.environ |= {"RAYON_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "true"}
    data = Data.model_validate(job.given.settings["data"])
    raw, model = read_manifest(args.raw), read_manifest(args.tokenizer) if args.tokenizer else None
    output = job.folder
    output.mkdir(parents=True, exist_ok=True)
    files = {split: [raw.folder / split / name for name in names] for split, names in raw.facts["files"].items()}
    try:
        earlier = preparing.joined(preparing.Preparation(args, data, raw, output))
        verify(*filter(None, (model, None if earlier else raw)))
        for split, of_split in files.items():
            report_unread(of_split, data, f"data.{split}")
        if data.by_class:
            facts = report = preparing.prepare_items(data, output, cores=args.threads)
            made = preparing.files_of_items(facts)
        elif model is None:
            raise SystemExit("prepare_data: --tokenizer is missing; only a dataset class needs none.")
        else:
            facts, report, made = _prepare(data, files, raw.folder, earlier, model.folder / "files", output, args.threads)
    except ValueError as error:
        raise SystemExit(f"prepare_data: {error}") from None
    write_json(output / "report.json", report)
    show(report)
    inputs = {"raw": raw.content} | ({"tokenizer": model.content} if model else {})
    adopt(output, earlier.files if earlier else {})
    job.finish(inputs, [*made, "report.json"], facts, started)
    if earlier:
        earlier.clean_up()


def _arguments() -> argparse.Namespace:
    parser = stages.parser("prepare_data", __doc__)
    parser.add_argument("--raw", required=True, metavar="MANIFEST", help="manifest of the fetched data")
    parser.add_argument(
        "--tokenizer", nargs="?", metavar="MANIFEST", help="manifest of the fetched tokenizer; not needed for a dataset class"
    )
    parser.add_argument("--threads", type=int, default=1, help="number of CPU cores to use (default: %(default)s)")
    preparing.add_arguments(parser)
    return parser.parse_args()


def _prepare(
    data: Data, files: dict[str, list[Path]], root: Path, earlier: preparing.Joined | None, fetched: Path, output: Path, threads: int
) -> tuple[JsonObject, JsonObject, list[str]]:
    """The facts of the manifest, those of the report, and the files that were made. `earlier`: what other jobs have made of them."""
    if not earlier and (problems := check(data, files)):
        raise ValueError("the data cannot be used.\n" + "\n".join(f"  - {problem}" for problem in problems))
    folder = output / "tokenizer"
    copied = [f"tokenizer/{name}" for name in copy_tokenizer(tokenizer_folder(fetched), folder, data.pair)]
    if earlier:
        found, issues, made = earlier.found, earlier.issues, [*earlier.files]
    else:
        found, issues = preparing.prepare(data, files, root, folder, output, threads)
        made = [f"{split}.arrow" for split in found["splits"]]
    facts: JsonObject = {
        "name": data.name,
        "label_names": found["label_names"],
        "label_kind": found["label_kind"],
        "splits": found["splits"],
        "pad_token_id": pad_token_id(folder),
        "end_token_id": end_token_id(folder, data),
        "vocab_size": max(vocabulary(folder).values()) + 1,
        "max_length": data.max_length,
        "odd": dict(sorted(issues.counts.items())),
    }
    return facts, facts | {"rows": found["rows"], "odd": issues.report()}, [*made, *copied]


if __name__ == "__main__":
    args = _arguments()
    stages.run(partial(main, args), args.output.parent)
