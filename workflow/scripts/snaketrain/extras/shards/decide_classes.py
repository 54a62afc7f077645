"""Stage: decide on the classes of all shards, from the labels that were found in them."""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.config.schema import Data
from snaketrain.extras.shards.classes import decide_classes
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import read_manifest


def main(args: argparse.Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    job.folder.mkdir(parents=True, exist_ok=True)
    data, shards = Data.model_validate(job.given.settings["data"]), list(map(read_manifest, args.surveys))
    surveys = {file: survey["labels"] for shard in shards for file, survey in shard.facts["files"].items()}
    try:
        names = decide_classes(data, (surveys[file] for file in sorted(surveys)))
    except ValueError as error:
        raise SystemExit(f"decide_classes: {error}") from None
    print(f"{len(names)} classes: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}")
    # the classes alone: as long as they stay the same, so does all that depends on them
    job.finish({path.folder.name: path.content for path in shards}, [], {"classes": names}, started)


def _arguments() -> argparse.Namespace:
    parser = stages.parser("decide_classes", __doc__)
    parser.add_argument("--surveys", required=True, nargs="+", metavar="MANIFEST", help="manifests of the surveys of all shards")
    return parser.parse_args()


if __name__ == "__main__":
    args = _arguments()
    stages.run(partial(main, args), args.output.parent)
