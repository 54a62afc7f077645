"""Writes the generated documents: config/README.md and config/schema.json from the settings classes, docs/other_trainers.md from the names that messages explain,
docs/benchmarks.md and docs/how_large.md from the results of the benchmarks, and the rule graph in README.md from the Snakefile.

`--check` writes nothing, and fails if a file is out of date.
"""

import argparse
import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from jinja2 import Environment, StrictUndefined

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "workflow/scripts"))

from json_schema import json_schema  # noqa: E402

from snaketrain.config.other_trainers import PRECISIONS, TRAINERS  # noqa: E402
from snaketrain.config.schema import Section, Settings  # noqa: E402
from snaketrain.config.schema.of_extras import modules  # noqa: E402
from snaketrain.config.schema.tasks import CHECKED_BY_CLASS, ModuleSettings, TextClassificationSettings  # noqa: E402
from snaketrain.orchestration.named_code import TEXT_TASKS  # noqa: E402

REFERENCE = REPOSITORY / "config/README.md"
SCHEMA = REPOSITORY / "config/schema.json"
README = REPOSITORY / "README.md"
BENCHMARKS = REPOSITORY / "docs/benchmarks.md"
OTHER_TRAINERS = REPOSITORY / "docs/other_trainers.md"
HOW_LARGE = REPOSITORY / "docs/how_large.md"
INTRODUCTION = """# Settings

<!-- Generated from workflow/scripts/snaketrain/config/schema/ by docs/write_docs.py. -->

What a configuration, by default `config/config.yaml`, can set; only what differs from a default needs to be given. [Configuration](../docs/configuration.md) explains
runs, sweeps, several datasets, the command line and how code is named; [Your own data](../docs/own_data.md) explains formats and label kinds."""
BESIDE_THE_SECTIONS = """## `datasets`, `runs`, `sweeps`

| key | type | meaning |
|---|---|---|
| `datasets` | mapping of names to [`data`](#data) | `data: NAME` picks one, for all runs or in one of `runs` |
| `runs` | mapping of names to settings | what each run changes: nested settings are merged into the sections, dotted ones such as `train.seed` replace |
| `sweeps` | mapping of names to mappings of dotted settings to lists | one run of every combination of the values |
| `search` | mapping of names | stops the runs of a [sweep](#search-for-a-sweep-by-its-name) early, or [samples](#search-with-a-space) runs |
| `verdicts` | mapping of names | trains two of `runs` with more seeds [until one is better](#verdicts-for-a-comparison-by-any-name) |"""
MARKS = ("<!-- rulegraph -->", "<!-- /rulegraph -->")
PLAIN = {"int": "integer", "float": "number", "str": "string", "bool": "`true` or `false`", "Any": "anything", "NoneType": "null"}


# --- settings


def reference() -> str:
    """The introduction, then a table for each section, each nested settings class, and the arguments of tasks."""
    parts = [INTRODUCTION, BESIDE_THE_SECTIONS]
    for name, field in Settings.model_fields.items():
        named = not isinstance(field.annotation, type)  # several of one class, each with a name
        parts.append(
            f"## `{name}`\n\n{field.description}\n\nA {type_name(field.annotation)}." if named else table(f"## `{name}`", field.annotation)
        )
    beside = {title: section for extra in modules("top_level") for title, section in extra.TABLES.items()}
    parts += [table(f"## {title}", section) for title, section in beside.items()]
    sections = [*(field.annotation for field in Settings.model_fields.values()), *beside.values()]
    found = dict.fromkeys(value for section in (Settings, *beside.values()) for value in inside(section))
    values = [value for value in found if value not in sections]
    parts += ["## Values with settings of their own", *(table(f"### {value.__name__}", value) for value in values)]
    parts += ["## Arguments of tasks", "What `train.task.arguments` takes.", arguments_of_tasks()]
    parts += [table("### Arguments of `text_classification`", TextClassificationSettings)]
    parts += [table("### Arguments of `module`", ModuleSettings)]
    parts += [table(f"### {value.__name__}", value) for value in inside(ModuleSettings) if value not in values]
    return "\n\n".join(parts) + "\n"


def arguments_of_tasks() -> str:
    """Of the tasks whose arguments have no settings class: as the classes take them."""
    rows = ["| task | arguments, with their defaults | meaning |", "|---|---|---|"]
    package = REPOSITORY / "workflow/scripts/snaketrain"
    files = {name: package / f"tasks/{name}.py" for name in TEXT_TASKS if name not in CHECKED_BY_CLASS}
    files |= {path.parent.name: path for path in package.glob("extras/*/task.py")}
    for task, path in sorted(files.items()):
        classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
        init = next((node for each in classes for node in each.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
        if init is None or not init.args.defaults:
            continue
        given = zip(init.args.args[1:], init.args.defaults, strict=True)
        takes = [f"`{name.arg}: {json.dumps(ast.literal_eval(default))}`" for name, default in given if name.arg != "generate"]  # a setting
        rows.append(f"| `{task}` | {', '.join(takes)} | {cell(ast.get_docstring(init) or '')} |")
    return "\n".join(rows)


def inside(annotation: Any) -> list[type[Section]]:
    """The settings classes inside a class or another annotation, each once."""
    fields = annotation.model_fields.values() if isinstance(annotation, type) and issubclass(annotation, Section) else []
    found = [annotation] if fields and annotation not in (Settings, ModuleSettings) else []
    for part in [field.annotation for field in fields] or get_args(annotation):
        found += inside(part)
    return list(dict.fromkeys(found))


def table(heading: str, section: type[Section]) -> str:
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        default = "*required*" if field.is_required() else cell(shown(field.default))
        rows.append(f"| `{name}` | {type_name(field.annotation, field.metadata)} | {default} | {cell(field.description or '')} |")
    return f"{heading}\n\n{inspect.cleandoc(section.__doc__ or '')}\n\n" + "\n".join(rows)


def type_name(annotation: Any, limits: list[Any] = ()) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):  # Annotated
        return type_name(inner[0], [limit for given in annotation.__metadata__ for limit in getattr(given, "metadata", [given])])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(each, limits if each is not types.NoneType else []) for each in inner)
    if origin is list:
        kind, comma, limits = type_name(inner[0]).partition(",")
        return f"list of {kind}s{comma}{limits}".replace("anythings", "values")
    if origin is dict:
        return f"mapping of {type_name(inner[0])} to {type_name(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return PLAIN[getattr(annotation, "__name__", str(annotation))] + bounds(limits)


def bounds(limits: list[Any]) -> str:
    """`, above 0` and the like, of pydantic's limits."""
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    found = {sign: getattr(limit, sign) for limit in limits for sign in words if getattr(limit, sign, None) is not None}
    return "".join(f", {words[sign]} {value:g}" for sign, value in found.items())


def shown(value: Any) -> str:
    if value is None:
        return "`null`"
    if isinstance(value, Section):
        value = {key: inner for key, inner in value.model_dump(mode="json").items() if inner not in ({}, None)}
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


# --- names of other trainers

COMING_FROM = """# Coming from another trainer

<!-- Generated from workflow/scripts/snaketrain/config/other_trainers.py by docs/write_docs.py. -->

What settings of other trainers are called here. Whoever writes one of theirs into a configuration is told the same by an error message, before any job starts. All settings are in the
[reference](../config/README.md)."""
SETTING = re.compile(rf"\b((?:{'|'.join(Settings.model_fields)})(?:\.\w+)+(?:: (?:\{{.*\}}|\w+))?)")


def other_trainers() -> str:
    precisions = ", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in PRECISIONS.items())
    parts = [COMING_FROM]
    for trainer, names in TRAINERS.items():
        rows = [f"| `{theirs}` | " + SETTING.sub(r"`\1`", ours) + " |" for theirs, ours in sorted(names.items())]
        parts.append("\n".join([f"## {trainer}", "", "| theirs | here |", "|---|---|", *rows]))
    return "\n\n".join([*parts, f"Of Lightning's values of `precision`, {precisions}."]) + "\n"


# --- benchmarks


def with_figures(page: Path) -> str:
    """A page of figures, each taken from a file of results; its template lies beside it."""
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((REPOSITORY / "benchmarks/results").glob("*.json"))
    }
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {
        "figure": figure,
        "scientific": lambda value: f"{value:.1e}",
        "gib": lambda value: f"{value / 2**30:.1f}",
        "when": when,
        "listed": lambda values: ", ".join(f"{value:.1f}" for value in values),
    }
    template = environment.from_string(page.with_suffix(".md.jinja").read_text(encoding="utf-8"))
    return template.render(results=results, **strategies(results["strategies"]))


def when(found: dict[str, Any], file: dict[str, Any] | None = None, between: str = " | ") -> str:
    """The date and the load of a table of figures, or else of the file that it is in."""
    about = (file or {}) | found
    return f"{about['date']}{between}{figure(about['load'], 1) if 'load' in about else 'not recorded'}"


def figure(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}"


def strategies(found: dict[str, Any]) -> dict[str, float]:
    """The largest differences from `single` in the losses, and from theory in the memory of a process."""
    losses = [loss for models in found["losses"].values() for model, loss in models.items() if model != "deep"]
    deep = max(models["deep"] for name, models in found["losses"].items() if "deep" in models and not name.startswith("single"))
    shares = [
        abs(memory["share"][kind] - memory["theory"][kind])
        for name, memory in found["memory"].items()
        for kind in memory["share"]
        if not (name.startswith("fairscale_fsdp") and kind == "gradients")  # the exception that the page names
    ]
    return {"worst_loss": max(losses), "worst_deep_loss": deep, "worst_share": max(shares)}


# --- rules


def rule_graph() -> str:
    """Snakemake's own graph of the embedded default, in a stable order, without its colours and the target `all`."""
    with tempfile.TemporaryDirectory() as folder:  # where no results/ affects the graph
        (Path(folder) / "config").mkdir()
        shutil.copy(REPOSITORY / "config/config.yaml", Path(folder) / "config")
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--directory", folder]
        done = subprocess.run([*command, "--rulegraph", "mermaid-js"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"snakemake --rulegraph failed:\n{done.stderr}")
    names = dict(re.findall(r"^\s*(id\d+)\[(\w+)\]", done.stdout, re.MULTILINE))
    edges = re.findall(r"^\s*(id\d+) --> (id\d+)", done.stdout, re.MULTILINE)
    targets: dict[str, list[str]] = {}
    for start, end in sorted((names[start], names[end]) for start, end in edges if names[end] != "all"):
        targets.setdefault(start, []).append(end)
    lines = [f"    {start} --> {' & '.join(ends)}" for start, ends in targets.items()]
    return "\n".join(["```mermaid", "flowchart LR", *lines, "```"])


def with_graph(readme: str) -> str:
    begin, end = MARKS
    if begin not in readme or end not in readme.partition(begin)[2]:
        raise SystemExit(f"README.md has no place for the rule graph. Put {begin} and {end} on lines of their own.")
    before, _, rest = readme.partition(begin)
    return f"{before}{begin}\n{rule_graph()}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args().check
    wanted = {REFERENCE: reference(), BENCHMARKS: with_figures(BENCHMARKS), HOW_LARGE: with_figures(HOW_LARGE)}
    wanted |= {OTHER_TRAINERS: other_trainers(), SCHEMA: json.dumps(json_schema(), ensure_ascii=False, indent=1) + "\n"}
    if README.is_file():
        wanted[README] = with_graph(README.read_text(encoding="utf-8"))
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if check and stale:
        names = ", ".join(str(path.relative_to(REPOSITORY)) for path in stale)
        raise SystemExit(f"Out of date: {names}. Run `make docs`.")
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"written: {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
