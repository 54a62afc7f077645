"""The generated documents are up to date, the site builds without warnings, and everything that pages refer to exists."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args, get_origin
from urllib.parse import unquote, urlsplit

import pytest

from snaketrain.config.references import load
from snaketrain.config.schema import Section, Settings

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        path
        for folder in (".", "docs", "config", "profiles", "workflow/scripts/snaketrain/extras/*")
        for path in REPOSITORY.glob(f"{folder}/*.md")
    ],
    key=lambda path: str(path),
)
ROOTS = [REPOSITORY, REPOSITORY / "workflow/scripts", REPOSITORY / "workflow/scripts/snaketrain"]  # paths of code are given from these
OUR_FOLDERS = ("workflow", "config", "profiles", "docs", "tests", "benchmarks", "snaketrain")
OF_RESULTS = (
    "results/",
    "comparison/",
    "selection/",
    "training/owner",
    "training/run.json",
    "training/loaded",
    "training/nodes_to_exclude",
    "training/job.sh",
    "training/certified",
    "training/verified",
)
INVENTED = ("my_code/", "path/to/")  # in examples
SETTING = re.compile(rf"(?<![\w./-])(?:{'|'.join(Settings.model_fields)})(?:\.[a-z_]+)+")
ENDINGS = ("arrow", "csv", "json", "jsonl", "md", "npy", "py", "safetensors", "svg", "tsv")  # of files, such as train.npy


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def prose(page: Path) -> str:
    """The page without its blocks of code, whose brackets are no links and whose comments no headings."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_generated_documents_are_up_to_date():
    done = subprocess.run([sys.executable, REPOSITORY / "docs/write_docs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_targets(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        if urlsplit(link).scheme:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page):
    """Paths with a folder in code quotes: `workflow/rules/train_model.smk`, `tasks/module.py`."""
    if page.name == "CHANGELOG.md":  # which also names what was there before
        return
    named = re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|smk|yaml|yml|md|json|jinja|sh))(?::\w+)?`", page.read_text(encoding="utf-8"))
    ours = [path for path in named if not path.startswith((*INVENTED, *OF_RESULTS))]
    assert [path for path in ours if not any((root / path).exists() for root in ROOTS)] == []
    folders = re.findall(rf"`((?:{'|'.join(OUR_FOLDERS)})/[\w./-]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in folders if not any((root / path).exists() for root in ROOTS)] == []


def test_how_to_use_slurm_stays_short():
    """What it need not say belongs to slurm_guarantees.md, or to an extra."""
    assert len((REPOSITORY / "docs/slurm.md").read_text(encoding="utf-8").split()) <= 900


def wrong_settings(text: str) -> list[str]:
    return [name for name in SETTING.findall(text) if name.split(".")[1] not in ENDINGS and not is_setting(name)]


def is_setting(name: str) -> bool:
    annotation: Any = Settings
    for part in name.split("."):
        if get_origin(annotation) is dict:  # the part is a name that the user gives
            annotation = get_args(annotation)[1]
            continue
        sections = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type) and issubclass(each, Section)]
        if not sections:  # arguments of a class
            return True
        if part not in sections[0].model_fields:
            return False
        annotation = sections[0].model_fields[part].annotation
    return True


def texts_in(file: Path) -> Iterator[str]:
    """Messages and docstrings."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_settings_that_pages_and_messages_name_exist():
    assert is_setting("compute.evaluation.minutes") and not is_setting("compute.evaluation.seconds")
    found = {name_of(page): wrong_settings(prose(page)) for page in PAGES}
    found |= {
        str(file): wrong_settings("\n".join(texts_in(file)))
        for file in (REPOSITORY / "workflow").rglob("*.py")
        if file.parent.name != "tests"
    }
    assert {where: names for where, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("page", "described"),
    [
        ("own_task.md", "snaketrain.tasks.base.Task"),
        ("own_strategy.md", "snaketrain.strategies.base.Strategy"),
        ("own_callback.md", "snaketrain.training.callbacks.Callback"),
        ("own_trainer.md", "snaketrain.training.trainer.Trainer"),
    ],
)
def test_methods_that_may_be_overridden_exist(page, described):
    rows = re.findall(r"^\| (`.+?) \|", (REPOSITORY / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)", row)]
    assert len(names) >= 10
    assert [name for name in names if not hasattr(load(described), name)] == []


def test_the_arguments_of_strategies_are_documented():
    page = (REPOSITORY / "docs/strategies.md").read_text(encoding="utf-8")
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in (ROOTS[2] / "strategies").glob("*.py")]
    inits = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    taken = {each.arg for init in inits if init.args.kwarg for each in init.args.args} - {"self"}  # they pass the others on
    assert len(taken) > 15 and {name for name in taken if f"`{name}" not in page} == set()


class References(HTMLParser):
    """The addresses that a page of the site links to or loads, and its anchors."""

    def __init__(self, page: Path):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given["id"]} if given.get("id") else set()
        if tag in ("script", "img", "link") and given.get("rel") != "canonical":
            self.loaded += [address for name in ("src", "href") if (address := given.get(name))]
        elif tag == "a" and given.get("href"):
            self.links.append(given["href"])


def test_the_site_builds_and_is_complete(tmp_path):
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pages = {page: References(page) for page in site.rglob("*.html")}
    assert len(pages) >= 17 and site / "settings.html" in pages
    broken = []
    for page, found in pages.items():
        for address in [*found.links, *found.loaded]:
            parts = urlsplit(address)
            if parts.scheme or page.name == "404.html":
                assert address not in found.loaded or page.name == "404.html", f"{page.name} loads {address}"
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].anchors if parts.fragment and target in pages else {parts.fragment}
            if not target.exists() or parts.fragment not in known:
                broken.append(f"{page.name}: {address}")
    assert broken == []
