"""Whether certificates of equal code accept edits that change nothing, and refuse those that change what is computed.

In a copy of the repository a tiny BERT is trained, on two processes. Then local variables are renamed and returned expressions are named first, in functions that
the replays execute, drawn at random; `snaketrain certify` has to accept all of these edits. And the mutations of tests/mutations.toml that lie
in code of the training are made, one by one. Of one that is certified the whole training is made again: only those count that change its
result, and the command has to refuse these. Goals: all, and 99 %.
"""

import ast
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import REPOSITORY, command_line, judge, write_figures
from mutations import TABLE, copy_of, read_table
from pipeline.workspace import configuration, make_workspace

from snaketrain.extras.reproduce.certify import NOT_COMPARED, replay_of, segments
from snaketrain.extras.reproduce.changed_lines import statements
from snaketrain.extras.reproduce.replaying import Recorded, replayed
from snaketrain.runtime.manifests import read_manifest

SCRIPTS = "workflow/scripts"
CERTIFY = f"{SCRIPTS}/snaketrain/extras/reproduce/certify.py"
TRAINING = Path("results/runs/small/training")
EQUAL = "certified: the whole training gives the same result"
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Match)
SETTINGS = {  # of which each does something in this training
    "epochs": 6, "warmup": 0.1, "clip_norm": 0.05, "accumulate": 2, "strategy": "ddp", "groups": [{"match": "classifier.*", "rate_scale": 3}],
    "task": {"use": "text_classification", "arguments": {"label_smoothing": 0.1}},
}  # fmt: skip


def main() -> None:
    parser = command_line("certificates", __doc__)
    parser.add_argument("--edits", type=int, default=100, help="how many harmless ones (default: %(default)s)")
    parser.add_argument("--together", type=int, default=20, help="how many of these are certified together (default: %(default)s)")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "copy"
        train(root)
        files = {root / SCRIPTS / f"{name.replace('.', '/')}.py" for name in json.loads((root / TRAINING / "run.json").read_text())["code"]}
        editable = sorted(file for file in files if file.is_file() and not module_of(root, file).startswith(NOT_COMPARED))
        harmless = accepted(root, possible_edits(root, editable, args.edits), args.together)
        outcomes = dict(outcomes_of_mutations(root, files))
    harmful = [why for why in outcomes.values() if why != EQUAL]
    refused = sum(why is not None for why in harmful)
    found = {"harmless": harmless, "mutations": len(harmful), "refused": refused, "equal": len(outcomes) - len(harmful), "why": outcomes}
    write_figures(args.output, found)
    judge(
        {
            f"{harmless['accepted']} of {harmless['edits']} harmless edits are accepted": harmless["accepted"] == harmless["edits"],
            f"{refused} of {len(harmful)} mutations that change the result are refused, {found['equal']} do not change it; the goal is 99 %": refused
            >= 0.99 * len(harmful),
        }
    )


def module_of(root: Path, file: Path) -> str:
    return ".".join(file.relative_to(root / SCRIPTS).with_suffix("").parts)


class NotExecuted(Exception):
    """A training does not execute the part of a file that was changed, such as a class of a kind of labels."""


def train(root: Path) -> None:
    copy_of(REPOSITORY, root)
    config = configuration()
    config["train"] |= SETTINGS
    config["model"]["arguments"] |= {"hidden_dropout_prob": 0.1}
    config["compute"] |= {"keep_checkpoints": 3, "processes": 2}
    config["runs"] = {"small": {}}
    make_workspace(root, **config)
    git = ["git", "-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "before"]):
        subprocess.run([*git, *words], cwd=root, check=True)
    trained(root)


def trained(root: Path) -> dict[str, str]:
    """The digests of all that the training has made, but for what names its code."""
    snakemake = Path(sys.executable).with_name("snakemake")
    target = str(TRAINING / "manifest.json")
    subprocess.run([snakemake, "--profile", "profiles/local", "--", target], cwd=root, check=True, env=environment(root))
    return made_by(root)


def made_by(root: Path) -> dict[str, str]:
    files = read_manifest(root / TRAINING / "manifest.json").files
    return {name: digest for name, digest in files.items() if Path(name).name != "state.json"}


def environment(root: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(root / SCRIPTS)}


def refusal(root: Path, edited: dict[Path, str]) -> str | None:
    """Why a change is not certified; None if it is."""
    before = {path: path.read_text(encoding="utf-8") for path in edited}
    for path, text in edited.items():
        path.write_text(text, encoding="utf-8")
    try:
        done = subprocess.run([sys.executable, CERTIFY], cwd=root, env=environment(root), capture_output=True, text=True)
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
        (root / TRAINING / "certified.json").unlink(missing_ok=True)
    said = done.stdout + done.stderr
    if done.returncode == 0 and "small: certified: " not in said:
        raise NotExecuted(said)
    return None if done.returncode == 0 else said.strip().splitlines()[-1]


def result(root: Path, edited: dict[Path, str]) -> dict[str, str] | None:
    """Of the whole training with the change; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(root, Path(folder) / "copy", symlinks=True))
        shutil.rmtree(copy / "results/runs")
        for path, text in edited.items():
            (copy / path.relative_to(root)).write_text(text, encoding="utf-8")
        try:
            return trained(copy)
        except subprocess.CalledProcessError:
            return None


def outcomes_of_mutations(root: Path, files: set[Path]) -> Iterator[tuple[str, str | None]]:
    """Why each is not certified, or that it gives the same result; None if neither is so."""
    unchanged = result(root, {})
    if unchanged != made_by(root):
        raise SystemExit("the training does not give the same result twice, so that nothing can be said of changes")
    for each in read_table(TABLE)[0]:
        text = each.path(root).read_text(encoding="utf-8")
        if each.path(root) in files and each.old in text:
            with contextlib.suppress(NotExecuted):
                mutated = {each.path(root): text.replace(each.old, each.new)}
                why = refusal(root, mutated)
                if why is None and result(root, mutated) == unchanged:
                    why = EQUAL
                print(f"{each.name}: {why or 'CERTIFIED'}", flush=True)
                yield each.name, why


# --- edits that change nothing


@dataclass(frozen=True)
class Edit:
    """Of one function."""

    file: Path
    function: str
    spans: tuple[tuple[int, int, int, str], ...]  # line, columns in bytes, and what comes there


def accepted(root: Path, edits: list[Edit], together: int) -> dict[str, object]:
    count, refusals = 0, []
    for begin in range(0, len(edits), together):
        chosen = edits[begin : begin + together]
        if (why := refusal(root, edited(chosen))) is None:
            count += len(chosen)
        else:
            refusals.append(f"{', '.join(f'{each.file.stem}{each.function}' for each in chosen)}: {why}")
        print(f"{count} of {begin + len(chosen)} accepted", *refusals[-1:], flush=True)
    return {"edits": len(edits), "accepted": count, "refusals": refusals}


def edited(edits: list[Edit]) -> dict[Path, str]:
    texts: dict[Path, list[bytes]] = {}
    for file, span in sorted(((each.file, span) for each in edits for span in each.spans), reverse=True):
        line, first, last, new = span
        lines = texts.setdefault(file, file.read_bytes().split(b"\n"))
        lines[line - 1] = lines[line - 1][:first] + new.encode() + lines[line - 1][last:]
    return {file: b"\n".join(lines).decode() for file, lines in texts.items()}


def possible_edits(root: Path, files: list[Path], count: int) -> list[Edit]:
    """One for each of some functions, in statements that the replays execute."""
    executed = lines_of_replays(root, files)
    found: dict[tuple[Path, str], list[Edit]] = {}
    for file in files:
        for edit in edits_of(file, executed):
            found.setdefault((file, edit.function), []).append(edit)
    draw = random.Random(0)
    print(f"{sum(map(len, found.values()))} edits could be made in {len(found)} functions that are executed", flush=True)
    return [draw.choice(found[each]) for each in draw.sample(sorted(found), count)]


def lines_of_replays(root: Path, files: list[Path]) -> set[str]:
    os.chdir(root)
    recorded, lines = Recorded(root / "results", "small"), root / "lines.json"
    lines.write_text(json.dumps({str(file): list(range(1, file.read_bytes().count(b"\n") + 2)) for file in files}))
    replays = [replay_of(recorded, each, root / "replays", lines) for each in segments(recorded)]
    for replay in replays:
        replay.project = root
    list(replayed(replays))
    return set(lines.with_suffix(".executed").read_text().splitlines())


def edits_of(file: Path, executed: set[str]) -> Iterator[Edit]:
    source = file.read_text(encoding="utf-8")
    known = [each for each in statements(source) if each.place.in_function]
    for scope, function in functions(ast.parse(source)):
        within = [each for each in known if each.place.scope == scope]

        def is_executed(lines: range) -> bool:
            return any(f"{file}:{line}" in executed for line in lines)

        for name in sorted(locals_of(function)):
            if all(is_executed(each.lines) for each in within if name in each.mentions):
                nodes = [each for each in ast.walk(function) if isinstance(each, ast.Name) and each.id == name]
                spans = tuple((each.lineno, each.col_offset, each.end_col_offset or 0, f"renamed_{name}") for each in nodes)
                yield Edit(file, scope, spans)
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Return)
                and node.value
                and node.lineno == node.end_lineno
                and is_executed(range(node.lineno, node.lineno + 1))
            ):
                text, new = ast.get_source_segment(source, node.value), f"\n{' ' * node.col_offset}return outcome"
                yield Edit(file, scope, ((node.lineno, node.col_offset, node.end_col_offset or 0, f"outcome = {text}{new}"),))


def functions(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Those that are in no other function, and have none in them, with their places."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{scope}.{node.name}")
        elif isinstance(node, ast.FunctionDef) and not any(isinstance(each, INNER) for child in node.body for each in ast.walk(child)):
            yield f"{scope}.{node.name}", node


def locals_of(function: ast.FunctionDef) -> set[str]:
    """The names that only assignments bind, and that no f-string has, in which Python does not know the places."""
    nodes = list(ast.walk(function))
    stored = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    in_texts = {inner.id for each in nodes if isinstance(each, ast.JoinedStr) for inner in ast.walk(each) if isinstance(inner, ast.Name)}
    return stored - in_texts - {each.arg for each in nodes if isinstance(each, ast.arg)} - {"outcome"}


if __name__ == "__main__":
    main()
