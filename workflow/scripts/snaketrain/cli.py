"""The command `snaketrain`: a name for each of the programs that people use. `snaketrain NAME --help` says what each takes.

A program is an ordinary script, which python runs as well. The folders in `snaketrain/extras/` name theirs as COMMANDS.
"""

import importlib.util
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
EXTRAS = SCRIPTS / "snaketrain/extras"
# the script, the words before those of the user, and what it is for
Command = tuple[Path, tuple[str, ...], str]

CORE: dict[str, Command] = {
    "run": (SCRIPTS / "tools/run.py", (), "check a configuration and run it, on this machine or on a cluster"),
    "check": (SCRIPTS / "tools/check_configuration.py", (), "check a configuration as before the first job, and start nothing"),
    "why": (SCRIPTS / "tools/why.py", (), "say which jobs would run, and why"),
    "ui": (SCRIPTS / "tools/show_runs.py", (), "open the MLflow UI on the results in this folder"),
    "track": (SCRIPTS / "tools/follow_runs.py", (), "bring MLflow up to date with the results in this folder"),
    "export": (SCRIPTS / "tools/export.py", (), "copy a run's selected model to a folder of its own"),
    "clean": (SCRIPTS / "tools/clean.py", (), "delete results that no run of a configuration needs"),
}


def commands() -> dict[str, Command]:
    """Those of the core, and of each extra that is there."""
    found = dict(CORE)
    for folder in sorted(path.parent for path in EXTRAS.glob("*/__init__.py")):
        # alone: as a module it would bring the whole configuration along
        own: Mapping[str, tuple[str, str]] = runpy.run_path(str(folder / "__init__.py")).get("COMMANDS", {})
        for name, (words, about) in own.items():
            script, *before = words.split()
            found[name] = (folder / script, tuple(before), about)
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
