"""The links between the pages of the documentation lead to files and headings that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

from tests.documents.blocks import pages
from tests.house.tree import ROOT

GUIDE = ROOT / "docs" / "guide"


def test_links_lead_to_files_and_headings_that_exist() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}" for page in pages() for link in _links(page) if not _leads(page, link)
    ]
    assert broken == []


def test_the_guide_lists_each_of_its_pages_in_order() -> None:
    listed = [link for link in _links(GUIDE / "README.md") if "/" not in link]
    assert listed == sorted(path.name for path in GUIDE.glob("*.md") if path.name != "README.md")


def _leads(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not heading or target.suffix != ".md" or heading in _headings(target))


def _links(page: Path) -> Iterator[str]:
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        for child in token.children or ():
            link = str(child.attrGet("href") or "")
            if link and not re.match(r"[a-z]+:", link):
                yield link


@cache
def _headings(page: Path) -> frozenset[str]:
    """The names of the page's headings in links, as GitHub makes them."""
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)
