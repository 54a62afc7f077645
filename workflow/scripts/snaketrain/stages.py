"""What every stage script does the same way: its command line, its identity, and the manifest it ends with."""

import argparse
import time
from pathlib import Path
from typing import Any

from snaketrain.manifests import Manifest, digest, file_digest, write_manifest


def parser(description: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        description=description,
        epilog="Snakemake fills in all of these; the log of a job, in logs/, begins with its whole command, to be repeated or changed by hand.",
    )
    arguments.add_argument("--output", required=True, metavar="FOLDER/manifest.json", help="written last; all else goes beside it")
    arguments.add_argument("--settings", nargs="*", default=[], metavar="KEY=JSON", help="settings, e.g. 'train.learning_rate=3e-05'")
    arguments.add_argument("--code", nargs="*", default=[], metavar="KEY=DIGEST", help="digests of the code; they only identify the result")
    return arguments


def identity(stage: str, args: argparse.Namespace, inputs: dict[str, str]) -> str:
    """The same stage with the same settings, code and inputs has the same identity, wherever and whenever it runs."""
    return digest(stage, sorted(args.settings), sorted(args.code), inputs)


def finish(stage: str, args: argparse.Namespace, inputs: dict[str, str], files: list[str], facts: dict[str, Any], started: float) -> None:
    output = Path(args.output)
    digests = {name: file_digest(output.parent / name) for name in files}
    write_manifest(output, Manifest(stage, identity(stage, args, inputs), args.settings, inputs, digests, facts, started))
    print(f"{stage}: done in {time.time() - started:.1f} s -> {output}", flush=True)
