"""Stage: find the labels in a shard of the training files, where `data.labels` does not list the classes."""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.config.schema import Data
from snaketrain.extras.shards.classes import survey_file
from snaketrain.extras.shards.dealing import Shard
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import digest, read_manifest, verify
from snaketrain.runtime.strict_json import JsonObject


def main(args: argparse.Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    job.folder.mkdir(parents=True, exist_ok=True)
    data, raw = Data.model_validate(job.given.settings["data"]), read_manifest(args.raw)
    earlier = stages.previous_manifest(job.folder)
    known: dict[str, JsonObject] = earlier.facts["files"] if earlier else {}
    found: dict[str, JsonObject] = {}
    try:
        files = [file for file in Shard.of(args.shard).files(raw, data) if file.source == "train"]
        verify(raw, wanted={file.fetched for file in files}.__contains__)
        for file in files:
            key = digest(job.given.settings, job.given.code, file.sha256)
            before = known.get(file.title, {})
            labels = before["labels"] if before.get("key") == key else survey_file(data, file, raw.folder)
            found[file.title] = {"key": key, "labels": labels}
    except ValueError as error:
        raise SystemExit(f"survey_shard: {error}") from None
    job.finish({"raw": raw.content}, [], {"files": found}, started)


def _arguments() -> argparse.Namespace:
    parser = stages.parser("survey_shard", __doc__)
    parser.add_argument("--raw", required=True, metavar="MANIFEST", help="manifest of the fetched data")
    parser.add_argument("--shard", required=True, metavar="NAME", help="such as 00003-of-00008")
    return parser.parse_args()


if __name__ == "__main__":
    args = _arguments()
    stages.run(partial(main, args), args.output.parent)
