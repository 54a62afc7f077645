"""The comparison page of a real workflow: its parts are labelled, and it needs no network. Its looks: tests/unit/test_page.py."""

from html.parser import HTMLParser

import pytest


class Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def text(workspace) -> str:
    return (workspace / "results/comparison/index.html").read_text()


def test_a_screen_reader_finds_its_way(text):
    page = Page(text)
    assert page.all("html")[0]["lang"] == "en" and len(page.all("h1")) == len(page.all("title")) == 1
    assert page.all("th") and all(cell["scope"] in ("row", "col", "colgroup") for cell in page.all("th"))
    regions = [each for each in page.all("div") if each.get("class") == "scroll"]  # to be scrolled by keyboard
    assert len(regions) == len(page.all("table")) >= 3
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in regions)
    curves = [each for each in page.all("figure") if "data-runs" in each]
    assert len(curves) == 3 and {each["data-runs"] for each in curves} <= {"small, other", "other, small"}
    *_, reliability = page.all("img")
    assert reliability["alt"].startswith("Reliability plot of ")


def test_the_page_needs_no_network(text):
    page = Page(text)
    assert page.all("link") == [] and all("src" not in each for each in page.all("script"))
    assert not any(word in text for word in ("fetch(", "XMLHttpRequest", "import("))
    assert all(each["src"].startswith("data:") for each in page.all("img"))
    assert all(each["srcset"].startswith("data:") for each in page.all("source"))
    assert "url(" not in text.replace("url(#", "") and "@import" not in text
