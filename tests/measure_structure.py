"""Prints how large the code is, and how much of it a reader crosses: in a training step, in a dry run of the demo.

    python tests/measure_structure.py [--base REVISION] [--traced]

With `--base`, the same figures of another revision stand beside them. `--traced` runs a training and a dry run, which takes half a minute.
"""

import argparse
import ast
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "workflow/scripts/snaketrain/extras"
FIRST, LAST = 6, 7  # the step that is traced begins after the first of these and ends with the last: caches are warm by then

TRACE = """
import os, sys, threading
ours, seen = sys.argv.pop(1), set()

def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(ours) and not frame.f_code.co_name.startswith("<"):
        seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

def report(name):
    print("TRACED", name, len(seen), len({file for file, _ in seen}), file=sys.stderr)
"""
DRY_RUN = """
threading.setprofile(profile)
sys.setprofile(profile)
from snakemake.cli import main
try:
    main(["-n", "--quiet", "--cores", "1", "--snakefile", sys.argv[1], "--configfile", sys.argv[2]])
finally:
    sys.setprofile(None)
    report("dry run")
"""
TRAINING = """
from pathlib import Path
from points import TRAIN, Points
from snaketrain import Callback, Trainer, TrainerOptions
from snaketrain.config.schema import Model
from snaketrain.config.schema import Train  # noqa: E402
from snaketrain.data.loading.examples import Splits  # noqa: E402

class Traced(Callback):
    def on_step_end(self, state, outcome):
        if state.step == FIRST:
            sys.setprofile(profile)
        elif state.step == LAST:
            sys.setprofile(None)

data = Splits(Points(400, seed=0), Points(21, seed=1), {})
task = {"use": "points.Classify", "arguments": {"dropout": 0.0}}
settings = Train(**TRAIN | {"task": task, "evaluations_per_epoch": 1})
Trainer.from_settings(settings, Model(use="torch.nn.Linear"), data, Path("run"), TrainerOptions(callbacks=[Traced()])).fit()
report("step")
"""


def main() -> None:
    arguments = parser().parse_args()
    figures = [measured(ROOT, arguments.traced)]
    if arguments.base:
        with tempfile.TemporaryDirectory() as folder:
            figures.insert(0, measured(checked_out(arguments.base, Path(folder)), arguments.traced))
    names = list(dict.fromkeys(name for each in reversed(figures) for name in each))
    width = max(map(len, names))
    if arguments.base:
        print(f"{'':{width}}  {arguments.base:>9.9}       here")
    for name in names:
        print(f"{name:{width}}", *(f"{each.get(name, '-'):>10}" for each in figures))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="REVISION", help="measure this revision as well")
    parser.add_argument("--traced", action="store_true", help="also count what a training step and a dry run of the demo call")
    return parser


def checked_out(revision: str, folder: Path) -> Path:
    subprocess.run(["git", "-C", ROOT, "archive", f"--output={folder}/code.tar", revision], check=True)
    with tarfile.open(folder / "code.tar") as archive:
        archive.extractall(folder, filter="data")
    return folder


def measured(root: Path, traced: bool) -> dict[str, int]:
    files = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in code_files(root)}
    parts = {part_of(path.relative_to(root)): 0 for path in files}
    for path, lines in files.items():
        parts[part_of(path.relative_to(root))] += lines
    tests = sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in [*(root / "tests/unit").glob("*.py"), *(root / EXTRAS).glob("*/tests/*.py")]
    )
    circles, edges = circles_of(packages_of(root)), extras_imported_by_core(root)
    figures = {
        "lines under workflow/": sum(files.values()),
        **{f"... of {part}": lines for part, lines in sorted(parts.items(), key=lambda each: (-each[1], each[0]))},
        "files": len(files),
        "lines of a file, on average": round(sum(files.values()) / len(files)),
        "files under 60 lines": sum(0 < lines < 60 for lines in files.values()),
        "files over 400 lines": sum(lines > 400 for lines in files.values()),
        "circles of packages": len(circles),
        "imports of extras in the core": edges,
        "lines of unit tests": tests,
    }
    return figures | (trace(root) if traced else {})


def part_of(path: Path) -> str:
    """`the core`, an extra, or a plug-in of Snakemake; neither of which the core imports."""
    below = path.parts[2:]  # workflow/scripts/
    if path.is_relative_to(EXTRAS):
        return f"extras/{path.relative_to(EXTRAS).parts[0]}" if len(path.relative_to(EXTRAS).parts) > 1 else "the core"
    return below[0] if below and below[0].startswith("snakemake_") else "the core"


def code_files(root: Path) -> Iterator[Path]:
    found = (path for path in sorted((root / "workflow").rglob("*")) if path.suffix in (".py", ".smk") or path.name == "Snakefile")
    yield from (path for path in found if path.parent.name != "tests")  # of an extra
    yield root / "Snakefile"


def modules_of(root: Path) -> dict[str, Path]:
    scripts = root / "workflow/scripts"
    return {
        ".".join(path.relative_to(scripts).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (scripts / "snaketrain").rglob("*.py")
        if path.parent.name != "tests"
    }


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, also inside functions, but not those for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        below
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for below in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in skipped:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import) and node not in skipped:
            yield from (alias.name for alias in node.names)


def packages_of(root: Path) -> dict[str, set[str]]:
    """Each package of snaketrain, such as `training`, and the other ones that it imports."""
    found: dict[str, set[str]] = {}
    packages = {path.parent.name for path in (root / "workflow/scripts/snaketrain").glob("*/__init__.py")}
    for name, path in modules_of(root).items():
        package = name.split(".")[1] if "." in name else ""
        if package in packages:
            others = {each.split(".")[1] for each in imports(path) if each.startswith("snaketrain.")}
            found.setdefault(package, set()).update((others & packages) - {package})
    return found


def circles_of(graph: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of packages in which each reaches each other one."""

    def reached(start: str) -> set[str]:
        seen, waiting = set(), [start]
        while waiting:
            for after in graph.get(waiting.pop(), set()) - seen:
                seen.add(after)
                waiting.append(after)
        return seen

    reach = {package: reached(package) for package in graph}
    circles = [{other for other in reach[package] if package in reach.get(other, set())} for package in graph if package in reach[package]]
    return [circle for number, circle in enumerate(circles) if circle not in circles[:number]]


def extras_imported_by_core(root: Path) -> int:
    prefix = "snaketrain.extras."
    return sum(each.startswith(prefix) for name, path in modules_of(root).items() if not name.startswith(prefix) for each in imports(path))


def trace(root: Path) -> dict[str, int]:
    scripts, figures = root / "workflow/scripts", dict[str, int]()
    environment = f"import sys; sys.path[:0] = [{str(scripts)!r}, {str(root / 'tests/unit')!r}, {str(root / 'tests')!r}]\n"
    steps = TRAINING.replace("FIRST", str(FIRST)).replace("LAST", str(LAST))
    dry_run = [str(root / "Snakefile"), str(root / "config/config.yaml")]
    for program, words in ((steps, []), (DRY_RUN, dry_run)):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", environment + TRACE + program, str(root / "workflow"), *words]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        line = next((line for line in done.stderr.splitlines() if line.startswith("TRACED")), None)
        if line is None:
            sys.exit(f"nothing was traced:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        *words, functions, passed = line.split()[1:]
        name = " ".join(words)
        figures |= {f"functions called in a {name}": int(functions), f"... in files, {name}": int(passed)}
    return figures


if __name__ == "__main__":
    main()
