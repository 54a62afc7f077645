"""Checks runs by effect, once before any job: another process imports what they name, makes it and tries a step, see `checking/`.

What was found right is remembered with the digest of the settings, of all code and of the versions: an unchanged start pays nothing.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from snaketrain.config.schema import Settings
from snaketrain.data.fetching import named_files
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.launching import trying
from snaketrain.runtime.manifests import digest, read_if_intact, stamp_of, write_checked
from snaketrain.runtime.provenance import installed
from snaketrain.runtime.strict_json import Json, JsonObject

STORE = Path(".snakemake/snaketrain-effects.json")
SWITCH = "SNAKETRAIN_CHECKS"  # `names`: nothing is imported or tried
VERSIONS = ("torch", "transformers", "tokenizers", "peft", "numpy")
SECONDS_TO_IMPORT = 300.0  # torch and transformers, from a slow file system
SECONDS_AN_ATTEMPT = 60.0
MOST_PROCESSES = 8  # each may be ended by other code


class Ended(NamedTuple):
    """How a process ended, and what it was trying then."""

    attempt: JsonObject | None
    how: str
    timed_out: bool


def effect_problems(runs: Mapping[str, Settings], untried: Collection[str] = ()) -> list[str]:
    """Problems of runs, each with its place and the run; none of runs that were found right before.

    Of runs `untried`, whose data is known to be wrong or whose settings contradict each other, only the code that they name is imported.
    """
    if os.environ.get(SWITCH) == "names" or not runs:
        return []
    known = _Known.read()
    keys = {name: run_key(run) for name, run in runs.items()}
    first: dict[str, str] = {}
    for name, key in keys.items():
        if key not in known.right:
            first.setdefault(key, name)
    if not first:
        return []
    some = "1 run" if len(first) == 1 else f"{len(first)} runs"
    print(
        f"checking what {some} would do, on two examples without memory (once for these settings and this code)",
        file=sys.stderr,
        flush=True,
    )
    found = asked({name: runs[name] for name in first.values()}, untried)
    if found is None:
        return []
    problems, files = found
    if not problems:
        known.add(
            (key for key, name in first.items() if name not in untried), [*files, *_read_files(runs[name] for name in first.values())]
        )
    return problems


def run_key(run: Settings) -> str:
    """Of everything in a run's settings that a check looks at."""
    train = run.train.model_dump_json(exclude={"seed", "deterministic", "early_stopping"})
    return digest(run.model_dump_json(exclude={"train", "select", "compute", "tracking"}), train)


# --- what was found right


class _Known:
    """The runs that were found right with this code and these versions, as long as no file that they load changes."""

    def __init__(self, code: str, right: set[str], files: dict[str, Json]):
        self.code, self.right, self.files = code, right, files

    @classmethod
    def read(cls) -> "_Known":
        code = digest(_code(), sys.version, [installed(name) for name in VERSIONS])
        kept = read_if_intact(STORE, "the runs are tried again")
        if kept and kept["code"] == code and all(stamp_of(file) == each for file, each in kept["files"].items()):
            return cls(code, set(kept["right"]), dict(kept["files"]))
        return cls(code, set(), {})

    def add(self, keys: Iterable[str], files: Iterable[str]) -> None:
        self.right |= set(keys)
        self.files |= {file: stamp_of(file) for file in files}
        with contextlib.suppress(OSError):  # a read-only folder
            STORE.parent.mkdir(exist_ok=True)
            write_checked(STORE, {"code": self.code, "right": sorted(self.right), "files": self.files})


def _code() -> list[Json]:
    return [[str(file.relative_to(SCRIPTS)), stamp_of(file)] for file in sorted((SCRIPTS / "snaketrain").rglob("*.py"))]


def _read_files(runs: Iterable[Settings]) -> set[str]:
    """The configurations of local models and the tokenizers."""
    found: set[str] = set()
    for run in runs:
        for source in (run.data.tokenizer, run.model.source):
            with contextlib.suppress(ValueError, OSError):
                if source and not source.is_remote:
                    found |= {str(file) for name, file in named_files(source).items() if name.endswith(".json")}
    return found


# --- the process


def asked(runs: Mapping[str, Settings], untried: Collection[str] = ()) -> tuple[list[str], list[str]] | None:
    """The problems, and the files of users that were loaded; None where nothing can be tried here.

    What ends a process is left out of the next one, so that everything else is reported as well.
    """
    skipped: list[str] = []
    ends: list[str] = []
    for _ in range(MOST_PROCESSES):
        problems, files, ended = _one_process(runs, skipped, untried)
        if ended is None:
            return ends + problems, files
        if ended.attempt is None:
            print(f"not checked by trying: the process that tries {ended.how}", file=sys.stderr, flush=True)
            return None
        where, use = ended.attempt["attempt"], ended.attempt["use"]
        if ended.timed_out and where.startswith("data."):  # reading may take long, and is no fault
            print(f"{where}: not tried, since `{use}` {ended.how}", file=sys.stderr, flush=True)
        else:
            ends.append(f"{where}: `{use}` {ended.how}. Correct it, or what it is given. (run {ended.attempt['run']})")
        skipped.append(f"{where} {use}")
    return ends + problems, files


def _one_process(runs: Mapping[str, Settings], skipped: list[str], untried: Collection[str]) -> tuple[list[str], list[str], Ended | None]:
    asked = {name: run.model_dump(mode="json") for name, run in runs.items()}
    request = json.dumps({"runs": asked, "skipped": skipped, "untried": sorted(untried)})
    command = trying("snaketrain.checking.runs")
    with tempfile.TemporaryFile("w+") as asking, tempfile.TemporaryFile("w+", errors="replace") as said:
        asking.write(request)
        asking.seek(0)
        process = subprocess.Popen(command, stdin=asking, stdout=subprocess.PIPE, stderr=said, start_new_session=True)
        assert process.stdout
        try:
            return _listen(process, process.stdout, said)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def _listen(process: "subprocess.Popen[bytes]", output: IO[bytes], said: IO[str]) -> tuple[list[str], list[str], Ended | None]:
    problems: list[str] = []
    attempt: JsonObject | None = None
    buffer, seconds = b"", SECONDS_TO_IMPORT
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if not selector.select(seconds):
                return problems, [], Ended(attempt, f"has not returned after {seconds:g} seconds", timed_out=True)
            if not (read := os.read(output.fileno(), 2**16)):
                return problems, [], Ended(attempt, _how(process.wait(), said), timed_out=False)
            *lines, buffer = (buffer + read).split(b"\n")
            for found in map(json.loads, lines):
                if found.get("done"):
                    return problems, found["files"], None
                if "problem" in found:
                    problems.append(f"{found['problem']} (run {found['run']})")
                seconds = SECONDS_AN_ATTEMPT
                attempt = found if "attempt" in found else attempt


def _how(code: int, said: IO[str]) -> str:
    said.seek(0)
    last = next((line.strip() for line in reversed(said.read().splitlines()) if line.strip() and not line.startswith(" ")), "")
    if code < 0:
        name = signal.Signals(-code).name if -code in {each.value for each in signal.Signals} else str(-code)
        return f"is killed by {name}" + (", perhaps since memory is short" if name == "SIGKILL" else "")
    return f"ends with exit code {code}" + (f" ({last[:200]})" if last else "")
