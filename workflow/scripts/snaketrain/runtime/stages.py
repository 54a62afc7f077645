"""What every stage script does the same way: its command line, its identity, and the manifest it ends with."""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snaketrain.runtime.full_disk import explained
from snaketrain.runtime.integrity import digests
from snaketrain.runtime.job_settings import JobSettings
from snaketrain.runtime.manifests import Manifest, digest, read_manifest, write_manifest, write_text

MADE_BEFORE = ".made-before.json"


def parser(description: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        description=description,
        epilog="Snakemake fills in all of these; the log of a job, in logs/, begins with its whole command, to be repeated or changed by hand.",
    )
    arguments.add_argument("--output", required=True, metavar="FOLDER/manifest.json", help="written last; all else goes beside it")
    arguments.add_argument(
        "--settings",
        required=True,
        action=_Read,
        metavar="FILE.json",
        help="settings, and digests of the code, which only identify the result",
    )
    return arguments


class _Read(argparse.Action):
    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, path: Any, __: str | None = None) -> None:
        found = JobSettings.read(path)
        namespace.settings, namespace.code = found.settings, found.code


def run(
    main: Callable[[argparse.Namespace], int | None],
    args: argparse.Namespace,
    tell: Callable[[argparse.Namespace, BaseException], None] | None = None,
    leave: Callable[[int], Any] = sys.exit,
) -> None:
    """Call a stage's `main` and end the process with its exit code, or, after `tell`, with that of what it raises.

    Every way out of a stage leads through here: of several processes, the others would wait for one that hangs at its end.
    """
    try:
        code = main(args) or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        code = 128 + signal.SIGINT
    except BaseException as error:
        told = explained(error, Path(args.output).parent)
        code = code_of(told)
        try:
            (tell or tell_on_terminal)(args, told)
        except BaseException:  # such as a full disk
            traceback.print_exc()
    leave(code)


def code_of(error: BaseException) -> int:
    """Never 0: a stage that is done returns."""
    asked = getattr(error, "exit_code", error.code if isinstance(error, SystemExit) else None)
    return asked if isinstance(asked, int) and asked else 1


def tell_on_terminal(args: argparse.Namespace, error: BaseException) -> None:
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)


def identity(stage: str, args: argparse.Namespace, inputs: dict[str, str]) -> str:
    """The same stage with the same settings, code and inputs has the same identity, wherever and whenever it runs."""
    return digest(stage, sorted(args.settings), sorted(args.code), inputs)


def finish(stage: str, args: argparse.Namespace, inputs: dict[str, str], files: list[str], facts: dict[str, Any], started: float) -> None:
    output = Path(args.output)
    made = Manifest(stage, identity(stage, args, inputs), args.settings, inputs, digests(output.parent, files), facts, started)
    earlier = made_before(output.parent)
    if not earlier or (earlier.identity, earlier.content) != (made.identity, made.content):
        write_manifest(output.with_name(MADE_BEFORE), made)
    # where nothing came out different it is the earlier one to the byte, times included: what was made of it need not be made again
    write_text(output, output.with_name(MADE_BEFORE).read_text(encoding="utf-8"))
    print(f"{stage}: done in {time.time() - started:.1f} s -> {output}", flush=True)


def made_before(folder: Path) -> Manifest | None:
    """The manifest of the last time: Snakemake deletes the one in its place before it starts a stage."""
    path = folder / MADE_BEFORE
    return read_manifest(path) if path.exists() else None
