"""Stage: tokenise and split the files of a shard, each on its own; files that were prepared before are left as they are."""

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.config.schema import Data
from snaketrain.data.tokenizer_files import tokenizer_folder
from snaketrain.extras.shards.parts import files_of_shard, prepare_parts
from snaketrain.runtime import stages
from snaketrain.runtime.manifests import adopt, digest, file_digest, read_manifest, verify


def main(args: argparse.Namespace) -> None:
    started, job = time.time(), stages.Job(args.output, args.settings)
    # read by the tokenizers library when it is first imported
    os.environ |= {"RAYON_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "true"}
    data = Data.model_validate(job.given.settings["data"])
    raw, model = read_manifest(args.raw), read_manifest(args.tokenizer)
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        files = files_of_shard(args.shard, raw, data)
        verify(model)
        verify(raw, wanted={file.title for file in files}.__contains__)
        shared = digest(job.given.settings, job.given.code, model.content)
        folders = {job.folder.parent.parent / "parts" / digest(shared, file.title, file.sha256): file for file in files}
        parts = prepare_parts(data, folders, raw.folder, tokenizer_folder(model.folder / "files"), args.threads)
    except ValueError as error:
        raise SystemExit(f"prepare_shard: {error}") from None
    made: dict[str, str] = {}
    for part in parts.values():
        beside = f"../../parts/{part.folder.name}"
        made |= {f"{beside}/{name}": sha256 for name, sha256 in part.files.items()}
        made[f"{beside}/manifest.json"] = file_digest(part.path)
    adopt(job.folder, made)
    inputs = {"raw": raw.content, "tokenizer": model.content}
    job.finish(inputs, sorted(made), {"parts": [parts[file.title].folder.name for file in files]}, started)


def _arguments() -> argparse.Namespace:
    parser = stages.parser("prepare_shard", __doc__)
    parser.add_argument("--raw", required=True, metavar="MANIFEST", help="manifest of the fetched data")
    parser.add_argument("--tokenizer", required=True, metavar="MANIFEST", help="manifest of the fetched tokenizer")
    parser.add_argument("--shard", required=True, metavar="NAME", help="such as 00003-of-00008")
    parser.add_argument("--threads", type=int, default=1, help="number of CPU cores to use (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    args = _arguments()
    stages.run(partial(main, args), args.output.parent)
