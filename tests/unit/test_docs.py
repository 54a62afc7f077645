"""The generated documents are up to date, the site builds without warnings, and everything that pages refer to exists."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from snaketrain.config.references import load

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [path for folder in (".", "docs", "config", "profiles") for path in (REPOSITORY / folder).glob("*.md")],
    key=lambda path: str(path),
)
ROOTS = [REPOSITORY, REPOSITORY / "workflow/scripts", REPOSITORY / "workflow/scripts/snaketrain"]  # paths of code are given from these
OUR_FOLDERS = ("workflow", "config", "profiles", "docs", "tests", "benchmarks", "snaketrain")
INVENTED = ("my_code/", "path/to/")  # in examples


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
    ours = [
        path for path in named if not path.startswith((*INVENTED, "results/", "training/owner", "training/nodes_to_exclude", "selection/"))
    ]
    assert [path for path in ours if not any((root / path).exists() for root in ROOTS)] == []
    folders = re.findall(rf"`((?:{'|'.join(OUR_FOLDERS)})/[\w./-]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in folders if not any((root / path).exists() for root in ROOTS)] == []


@pytest.mark.parametrize(
    ("page", "described"),
    [
        ("own_task.md", "snaketrain.tasks.base.Task"),
        ("own_strategy.md", "snaketrain.strategies.base.Strategy"),
        ("own_callback.md", "snaketrain.training.callbacks.base.Callback"),
    ],
)
def test_methods_that_may_be_overridden_exist(page, described):
    rows = re.findall(r"^\| (`.+?) \|", (REPOSITORY / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)", row)]
    assert len(names) >= 10
    assert [name for name in names if not hasattr(load(described), name)] == []


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
