"""Puts bugs into a copy of the repository, one at a time, and checks that the tests detect them.

The bugs are in tests/mutations.toml: each replaces a part of one line, and names the tests that must fail. First these must
pass without any bug. Takes about two minutes on an idle core; the working tree is not changed.
"""

import argparse
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TABLE = REPOSITORY / "tests/mutations.toml"
SURVIVORS_ALLOWED = 2
LONGEST_SECONDS = 600  # of the tests of one mutation; making them hang counts as detected
PASSED, FAILED = 0, 1  # pytest's exit codes; any other means that the tests did not run


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str  # below workflow/scripts
    old: str
    new: str
    tests: list[str]  # below tests, or from the top for those of an extra

    def path(self, root: Path) -> Path:
        return root / "workflow/scripts" / self.file

    def line(self, root: Path) -> int:
        """Where the old text is, which must occur exactly once."""
        lines = self.path(root).read_text(encoding="utf-8").splitlines()
        found = [number for number, line in enumerate(lines, start=1) for _ in range(line.count(self.old))]
        if len(found) != 1:
            where = f"{self.file} has it in lines {found}" if found else f"{self.file} has no line with it"
            raise SystemExit(
                f"tests/mutations.toml: {self.name!r}: {where}: {self.old!r} must occur exactly once. Write there what the line is now."
            )
        return found[0]


def read_table(path: Path) -> tuple[list[Mutation], list[str]]:
    """The mutations, and the modules to be imported once for all of them."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Mutation(**entry) for entry in content["mutation"]], content.get("preload", [])


def copy_of(repository: Path, root: Path) -> None:
    """All files that git tracks or could track: no results, no environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=repository, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (repository / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository / name, root / name)


def from_top(test: str) -> str:
    """Tests of an extra lie in its folder."""
    return test if test.startswith("workflow/") else f"tests/{test}"


def run_tests(root: Path, tests: list[str], log: Path) -> int | None:
    """pytest's exit code, in a process forked from this one, which has imported the slow packages; None if it did not end in time."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        os.setpgid(0, 0)  # so that it can be ended with everything it starts
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(root)
        import pytest

        code = pytest.main(
            [
                "-x",
                "-q",
                "--tb=short",
                "-rfE",
                "-p",
                "no:cacheprovider",
                *map(from_top, tests),
            ]
        )
        sys.stdout.flush()
        os._exit(code)
    end = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < end:
        if (found := os.waitpid(pid, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(found[1])
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def killer(root: Path, mutation: Mutation, log: Path) -> str | None:
    """The test that notices the mutation; None if none does."""
    path = mutation.path(root)
    mutation.line(root)
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace(mutation.old, mutation.new), encoding="utf-8")
    code = run_tests(root, mutation.tests, log)
    path.write_text(content, encoding="utf-8")
    if code == PASSED:
        return None
    output = log.read_text(encoding="utf-8")
    if code == FAILED:
        return re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", output, flags=re.MULTILINE)[0]
    if code is None:
        return f"not ended in {LONGEST_SECONDS} s"
    raise SystemExit(f"{mutation.name!r}: the tests did not run (pytest returned {code}):\n{output[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="of the mutations that have this in their name; can be repeated")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="what is copied (%(default)s)")
    parser.add_argument("--table", type=Path, default=TABLE, help="the mutations to try (default: %(default)s)")
    args = parser.parse_args()
    every, heavy = read_table(args.table)
    chosen = [each for each in every if not args.only or any(part in each.name for part in args.only)]
    if not chosen:
        sys.exit(f"--only: no mutation has that in its name. There are: {', '.join(each.name for each in every)}.")
    places = [f"{mutation.file}:{mutation.line(args.repository)}" for mutation in chosen]
    # of torch, in the tests and their processes; and no mutation leaves a compiled file to the next
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path.remove(str(Path(__file__).parent))  # the tests are to find their own
    for name in heavy:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        root, log = Path(folder) / "repository", Path(folder) / "log"
        copy_of(args.repository, root)
        started = time.perf_counter()
        if run_tests(root, list(dict.fromkeys(test for mutation in chosen for test in mutation.tests)), log) != PASSED:
            sys.exit(f"{log.read_text()[-3000:]}\nThe tests fail without any mutation: mend that first.")
        print(f"Without a mutation the tests pass, in {time.perf_counter() - started:.0f} s.\n", flush=True)
        survivors = []
        for mutation, place in zip(chosen, places, strict=True):
            started = time.perf_counter()
            found = killer(root, mutation, log)
            survivors += [] if found else [mutation.name]
            seconds = time.perf_counter() - started
            print(f"{mutation.name:58} {place:42} {seconds:5.1f} s  {f'killed by {found}' if found else 'SURVIVED'}", flush=True)
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} mutations are killed.")
    if len(survivors) > (0 if args.only else SURVIVORS_ALLOWED):
        sys.exit(f"Survived: {', '.join(survivors)}. Write tests that notice them.")


if __name__ == "__main__":
    main()
