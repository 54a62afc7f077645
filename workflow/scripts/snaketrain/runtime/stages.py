"""What every stage script does the same way: its command line, its identity, and the manifest it ends with."""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from snaketrain.runtime.full_disk import explained
from snaketrain.runtime.integrity import digests
from snaketrain.runtime.job_settings import JobSettings
from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.manifests import Manifest, digest, read_manifest, write_manifest, write_text

MADE_BEFORE = ".made-before.json"


@dataclass(frozen=True)
class Job:
    """One start of a stage's script."""

    output: Path  # its manifest
    given: JobSettings

    @property
    def folder(self) -> Path:
        return self.output.parent

    def identity(self, inputs: dict[str, str]) -> str:
        """The same stage with the same settings, code and inputs has the same identity, wherever and whenever it runs."""
        return digest(self.given.stage, sorted(self.given.settings), sorted(self.given.code), inputs)

    def finish(self, inputs: dict[str, str], files: list[str], facts: JsonObject, started: float) -> None:
        """Write the manifest: `files` are relative to its folder, `inputs` the content digests of the manifests that were read."""
        stage, settings = self.given.stage, self.given.settings
        made = Manifest(stage, self.identity(inputs), settings, inputs, digests(self.folder, files), facts, started)
        earlier = made_before(self.folder)
        if not earlier or (earlier.identity, earlier.content) != (made.identity, made.content):
            write_manifest(self.folder / MADE_BEFORE, made)
        # if nothing came out different, it is the earlier one to the byte, times included, so that nothing made from it is stale
        write_text(self.output, (self.folder / MADE_BEFORE).read_text(encoding="utf-8"))
        print(f"{stage}: done in {time.time() - started:.1f} s -> {self.output}", flush=True)


def made_before(folder: Path) -> Manifest | None:
    """The manifest of the last time: Snakemake deletes the one in its place before it starts a stage."""
    path = folder / MADE_BEFORE
    return read_manifest(path) if path.exists() else None


def parser(stage: str, description: str | None) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        description=description,
        epilog="Snakemake fills in all of these; the log of a job, in logs/, begins with its whole command, to be repeated or changed by hand.",
    )
    arguments.add_argument(
        "--output", required=True, type=Path, metavar="FOLDER/manifest.json", help="written last; everything else goes beside it"
    )
    arguments.add_argument(
        "--settings",
        required=True,
        type=lambda path: JobSettings.read(path, stage),
        metavar="FILE.json",
        help="settings, and digests of the code, which only identify the result",
    )
    return arguments


def run(
    main: Callable[[], int | None],
    folder: Path,
    report: Callable[[BaseException], None] | None = None,
    leave: Callable[[int], object] = sys.exit,
) -> None:
    """Call a stage's `main` and end the process with its exit code, or, after `report`, with that of what it raises.

    Every way out of a stage leads through here: if one of several processes hung at its end, the others would wait for it.
    """
    try:
        code = main() or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        code = 128 + signal.SIGINT
    except BaseException as error:
        reported = explained(error, folder)
        code = code_of(reported)
        try:
            (report or report_on_terminal)(reported)
        except BaseException:  # such as a full disk
            traceback.print_exc()
    leave(code)


def code_of(error: BaseException) -> int:
    """Never 0: a stage that is done returns."""
    asked = getattr(error, "exit_code", error.code if isinstance(error, SystemExit) else None)
    return asked if isinstance(asked, int) and asked else 1


def report_on_terminal(error: BaseException) -> None:
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
