"""The command `snaketrain`: a name for each of the programs that people use. `snaketrain NAME --help` says what each takes.

A program is an ordinary script, which python runs as well. The folders in `snaketrain/extras/` name theirs as COMMANDS.
"""

import functools
import importlib.util
import runpy
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
EXTRAS = SCRIPTS / "snaketrain/extras"
# of each command: its script and the words before those of the user, and what it is for
CORE = {
    "run": ("run.py run", "check a configuration and run it, on this machine or on a cluster"),
    "check": ("run.py check", "check a configuration as before the first job, and start nothing"),
    "why": ("run.py why", "say which jobs would run, and why"),
    "ui": ("show_runs.py", "open the MLflow UI on the results in this folder"),
    "track": ("follow_runs.py", "bring MLflow up to date with the results in this folder"),
    "export": ("export.py", "copy a run's selected model to a folder of its own"),
    "clean": ("clean.py", "delete results that no run of a configuration needs"),
}


@functools.cache
def commands() -> dict[str, tuple[Path, list[str], str]]:
    """Those of the core, and of each extra that is there: the script, the words before those of the user, and what it is for."""
    # alone: as a module an extra would bring the whole configuration along
    extras = {path.parent: runpy.run_path(str(path)).get("COMMANDS", {}) for path in sorted(EXTRAS.glob("*/__init__.py"))}
    found = {}
    for folder, named in {SCRIPTS / "tools": CORE, **extras}.items():
        for name, (words, about) in named.items():
            script, *before = words.split()
            found[name] = folder / script, before, about
    return found


def usage() -> str:
    known = commands()
    width = max(map(len, known))
    lines = [f"  {name.ljust(width)}  {about}" for name, (_, _, about) in known.items()]
    return "\n".join(["usage: snaketrain COMMAND ...", "", *lines, "", "snaketrain COMMAND --help says what a command takes."])


def main() -> None:
    name, *words = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in commands():
        raise SystemExit(f"snaketrain: there is no command {name!r}.\n\n{usage()}")
    script, before, _ = commands()[name]
    spec = importlib.util.spec_from_file_location(f"snaketrain_{script.stem}", script)
    assert spec and spec.loader
    program = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.argv = ["snaketrain" if before else f"snaketrain {name}", *before, *words]  # what its usage begins with
    spec.loader.exec_module(program)
    sys.exit(program.main())


if __name__ == "__main__":
    main()
