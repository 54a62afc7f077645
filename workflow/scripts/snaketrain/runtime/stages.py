"""What all stage scripts share: the settings, the command line, the identity of a result, and the manifest written last."""

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from snaketrain.runtime import strict_json
from snaketrain.runtime.file_systems import explained
from snaketrain.runtime.loaded_code import RECORDED, imported_packages, loaded_files
from snaketrain.runtime.manifests import (
    PRIVATE_FILE,
    Manifest,
    digest,
    digests,
    log_digests,
    read_if_intact,
    read_manifest,
    write_checked,
    write_manifest,
    write_text,
)
from snaketrain.runtime.provenance import in_use
from snaketrain.runtime.strict_json import Json, JsonObject

# --- Settings: the sections of the configuration that a result depends on, as JSON. Rules compare them as params, manifests contain them.


def by_name(sections: JsonObject) -> JsonObject:
    """Each setting by its full name, such as `train.learning_rate`; a mapping whose keys are not all identifiers is one value."""
    return dict(_named("", sections)) if sections else {}


def _named(above: str, section: JsonObject) -> Iterator[tuple[str, Json]]:
    for key, value in section.items():
        if isinstance(value, dict) and value and all(inner.isidentifier() for inner in value):
            yield from _named(f"{above}{key}.", value)
        else:
            yield f"{above}{key}", value


# --- The JSON file that passes a job its settings. Its name has their digest: a repeated command means the same, and workflows with other
# settings do not interfere. The files are in `.snakemake`, like Snakemake's metadata: a job's own folder may be moved aside by a training
# that starts over.

FOLDER = Path(".snakemake/snaketrain-settings")
UNUSED_DAYS = 30  # after which a file is removed


@dataclass(frozen=True)
class JobSettings:
    stage: str
    settings: JsonObject  # by section
    code: dict[str, str]  # digests, by module or file
    changed_code: dict[str, str] = field(default_factory=dict)  # as it is now, where it is certified to give the results that are there

    def path(self, name: str = "", folder: Path = FOLDER) -> Path:
        return folder / self.stage / f"{name.replace('/', '-') or self.stage}-{digest(self.settings, self.code)}.json"

    def store(self, name: str = "", folder: Path = FOLDER) -> Path:
        path, text = self.path(name, folder), strict_json.with_checksum(vars(self))
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text, PRIVATE_FILE)
        else:
            with suppress(OSError):
                os.utime(path)  # it is used
        return path

    @classmethod
    def read(cls, path: str | Path, stage: str | None = None) -> "JobSettings":
        """`stage`: refuse the settings of any other stage."""
        try:
            found = cls(**strict_json.checked(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise SystemExit(f"{path}: not a readable settings file ({error!r}). Start the workflow, which writes it.") from None
        if stage and found.stage != stage:
            raise SystemExit(f"{path}: contains the settings of {found.stage}, not of {stage}.")
        return found


def settings_words(output: Path, stage: str, settings: JsonObject) -> list[str]:
    """`--settings` for a stage script that is started without Snakemake; the file is written beside the folder of its output."""
    return ["--settings", str(JobSettings(stage, settings, {}).store(folder=output.parent / "settings"))]


def remove_unused(folder: Path = FOLDER) -> None:
    """Remove the files that no job was started with for a while. Jobs still in a queue need none: each writes its own when it starts."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in folder.glob("*/*"):
        with suppress(OSError):  # another workflow removes it too, or may only read here
            if path.stat().st_mtime < oldest:
                path.unlink()


# --- A job, and its result.

LOADER_WORKERS = "processes that load batches ahead, or `auto:N`: up to N where data is waited for (default: %(default)s)"
MADE_BEFORE = ".made-before.json"
MADE_AGAIN_WITH = ".made-again-with.json"  # other versions of packages, with which the result is the same


@dataclass(frozen=True)
class Job:
    """One execution of a stage's script."""

    output: Path  # its manifest
    given: JobSettings
    mixed: Sequence[JsonObject] = ()  # changes of code or settings in the middle of a training, which no other one has

    @property
    def folder(self) -> Path:
        return self.output.parent

    def identity(self, inputs: dict[str, str]) -> str:
        """A digest of stage, settings, code and inputs, independent of where and when the stage runs."""
        mixed = [list(self.mixed)] if self.mixed else []
        return digest(self.given.stage, self.given.settings, self.given.code, inputs, *mixed)

    def finish(
        self, inputs: dict[str, str], files: list[str], facts: JsonObject, started: float, versions: dict[str, str] | None = None,
        logs: Sequence[str] = (), written: Mapping[str, str] | None = None, loaded: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Write the manifest: `files` are relative to its folder, `inputs` the content digests of the manifests that were read.

        `versions`: of packages, where they are not those of this process; `logs`: files that a later attempt adds lines to, and whose
        lines until now must stay; `written`: further files, with the digests that they had when they were written, maybe by an earlier attempt;
        `loaded`: what own code had loaded and read in earlier attempts.
        """
        versions = in_use() | imported_packages() if versions is None else versions
        stage, recorded = self.given.stage, {name: now for name, now in self.given.code.items() if name.startswith(RECORDED)}
        made = Manifest(
            stage, self.identity(inputs), self.given.settings, inputs, digests(self.folder, files) | dict(written or {}), facts, started,
            logs=log_digests(self.folder, logs), loaded={**(loaded or {}), **loaded_files()}, recorded=recorded, versions=versions,
        )  # fmt: skip
        earlier = previous_manifest(self.folder)
        if not earlier or (earlier.identity, earlier.content, earlier.loaded) != (made.identity, made.content, made.loaded):
            write_manifest(self.folder / MADE_BEFORE, made)
            earlier = made
        if earlier.versions != versions:
            write_checked(self.folder / MADE_AGAIN_WITH, {"versions": versions})
        else:
            (self.folder / MADE_AGAIN_WITH).unlink(missing_ok=True)
        # if the result is the same as before, the manifest is too, byte for byte with its times, so that later stages are not stale
        write_text(self.output, (self.folder / MADE_BEFORE).read_text(encoding="utf-8"))
        print(f"{stage}: done in {time.time() - started:.1f} s -> {self.output}", flush=True)


def versions_of(made: Manifest) -> dict[str, str]:
    """Of the packages with which a stage made this result last, whether or not these changed it."""
    again = read_if_intact(made.folder / MADE_AGAIN_WITH, "the versions in the manifest count")
    return again["versions"] if again else made.versions


def previous_manifest(folder: Path) -> Manifest | None:
    """The previous manifest: a copy, since Snakemake deletes the manifest itself before it starts a stage."""
    path = folder / MADE_BEFORE
    try:
        return read_manifest(path) if path.exists() else None
    except SystemExit as error:
        print(f"warning: {error} What it says of the previous result is not used.", file=sys.stderr, flush=True)
        return None


# --- The command line, and the end of a script.


def parser(stage: str | None, description: str | None) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        description=description,
        epilog="Snakemake sets all of these. The log of a job, in logs/, begins with its complete command, which can be run again by hand.",
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


def parser_of_inference(stage: str, description: str | None) -> argparse.ArgumentParser:
    """Of a stage that runs the selected model."""
    arguments = parser(stage, description)
    arguments.add_argument("--selection", required=True, metavar="MANIFEST", help="manifest of the selected checkpoint")
    arguments.add_argument(
        "--model", nargs="?", metavar="MANIFEST", help="manifest of the fetched model that the training started from (default: none)"
    )
    arguments.add_argument("--device", default="auto", help="device to run the model on: auto, cpu or cuda (default: %(default)s)")
    arguments.add_argument(
        "--stall-seconds",
        type=float,
        default=1800,
        help="end a stage that makes no progress for this long, and log where it hangs (default: %(default)s)",
    )
    return arguments


def parser_of_evaluation(stage: str, description: str | None) -> argparse.ArgumentParser:
    """Of a stage that evaluates the model of a run."""
    arguments = parser_of_inference(stage, description)
    arguments.add_argument("--run-name", required=True, help="name of the run")
    arguments.add_argument(
        "--training", required=True, metavar="MANIFEST", help="manifest of the training, which knows the model and the task"
    )
    arguments.add_argument("--data", required=True, metavar="MANIFEST", help="manifest of the prepared training data")
    arguments.add_argument("--loader-workers", default="0", metavar="N", help=LOADER_WORKERS)
    return arguments


def run(
    main: Callable[[], int | None],
    folder: Path,
    report: Callable[[BaseException], object] | None = None,
    leave: Callable[[int], object] = sys.exit,
) -> None:
    """Call a stage's `main` and exit with its exit code, or, if it raises, `report` the error and exit with that error's code.

    Every exit of a stage goes through here: if one rank hung at its end, its peers would wait for it.
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
    """The exit code for an error; never 0."""
    asked = getattr(error, "exit_code", error.code if isinstance(error, SystemExit) else None)
    return asked if isinstance(asked, int) and asked else 1


def report_on_terminal(error: BaseException) -> None:
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
