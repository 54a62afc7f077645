"""The comparison's page is accessible, and needs no network."""

import itertools
import re
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
    assert len(page.all("caption")) == len(page.all("table")) >= 2
    regions = [each for each in page.all("div") if each["class"] == "scroll"]  # to be scrolled by keyboard
    assert regions and all(each["tabindex"] == "0" and each["aria-label"] for each in regions)
    (picture,) = page.all("img")
    assert "small" in picture["alt"] and "other" in picture["alt"] and "development accuracy" in picture["alt"]


def test_it_needs_no_network(text):
    page = Page(text)
    assert page.all("script") == page.all("link") == []
    assert all(each["src"].startswith("data:") for each in page.all("img"))
    assert "url(" not in text and "@import" not in text


def test_every_text_has_enough_contrast(text):
    """The WCAG's contrast of at least 4.5, for all combinations of colours."""
    style = re.search(r"<style>(.*)</style>", text, re.S)[1]
    texts, grounds = (set(re.findall(rf"[;{{ ]{name}: (#\w+)", style)) for name in ("color", "background"))
    assert len(texts) > 1 and len(grounds) > 3
    assert min(contrast(*pair) for pair in itertools.product(texts, grounds)) >= 4.5


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
