"""The code blocks of the documentation: their places, their languages, and the commands of console blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tests.house.tree import ROOT

_COMMENT = re.compile(r"\s#\s.*")

LANGUAGES = frozenset({"python", "console", "toml", "json", "mermaid", "text"})
"""The languages of blocks. All are run or loaded, except ``text`` (output) and ``mermaid`` (diagrams)."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block. ``line`` is the number of its first line of code."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file name of a Python block, if its first line is a comment with only that name."""
        first = self.code.partition("\n")[0].removeprefix("# ").strip()
        return first if first.endswith(".py") and " " not in first else ""


@dataclass(frozen=True, slots=True)
class Command:
    """A line after ``$``, without its comment, and the lines of output that the block shows below it."""

    text: str
    shown: tuple[str, ...]


def pages() -> list[Path]:
    """Every page that a user reads."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    name = str(page.relative_to(ROOT))
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    return [
        Block(name, token.map[0] + 2, token.info.strip(), token.content)
        for token in tokens
        if token.type == "fence" and token.map is not None
    ]


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a console block, each with the output that the block shows."""
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        typed, *shown = filter(None, map(str.strip, part.splitlines()))
        yield Command(_COMMENT.sub("", typed).strip(), tuple(shown))
