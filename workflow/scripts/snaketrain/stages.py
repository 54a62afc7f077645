"""What every stage script does the same way: its command line, its identity, and the manifest it ends with."""

import argparse
import time
from pathlib import Path
from typing import Any

from snaketrain.integrity import digests
from snaketrain.manifests import Manifest, digest, read_manifest, write_manifest, write_text

MADE_BEFORE = ".made-before.json"


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
    made = Manifest(stage, identity(stage, args, inputs), args.settings, inputs, digests(output.parent, files), facts, started)
    earlier = made_before(output.parent)
    if earlier and (earlier.identity, earlier.content) == (made.identity, made.content):
        # to the byte what it was, times included: what was made of it need not be made again
        write_text(output, Path(earlier.path).read_text(encoding="utf-8"))
    else:
        write_manifest(output, made)
        write_text(output.with_name(MADE_BEFORE), output.read_text(encoding="utf-8"))
    print(f"{stage}: done in {time.time() - started:.1f} s -> {output}", flush=True)


def made_before(folder: Path) -> Manifest | None:
    """The manifest of the last time: Snakemake deletes the one in its place before it starts a stage."""
    path = folder / MADE_BEFORE
    return read_manifest(path) if path.exists() else None
