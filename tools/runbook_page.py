"""Write the console's page of the runbook from docs/runbook.md, so that it can be read where no network is.

A section has the anchor that alerts name. A link to another page of the documentation becomes the name of that page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

__all__ = ["PAGE", "runbook_page"]

_ROOT: Final = Path(__file__).resolve().parent.parent
_SOURCE: Final = _ROOT / "docs" / "runbook.md"
PAGE: Final = _ROOT / "millwheel" / "server" / "console" / "static" / "runbook.html"
_FRAME: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Runbook · MillWheel</title>
<link rel="icon" href="/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/console.css">
</head>
<body class="page">
<main>
<p><a href="/">Console</a></p>
{content}</main>
</body>
</html>
"""


class _Renderer(RendererHTML):
    """Gives sections their anchors, and leaves only the links that lead somewhere without a network."""

    def heading_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        name = escape(tokens[index + 1].content.lower())
        return f'<{tokens[index].tag} id="{name}">'

    def link_open(self, tokens: Sequence[Token], index: int, options: Any, env: dict[str, Any]) -> str:
        target = str(tokens[index].attrGet("href"))
        env["page"] = "" if target.startswith("#") else target
        return "" if env["page"] else f'<a href="{escape(target)}">'

    def link_close(self, tokens: Sequence[Token], index: int, options: Any, env: dict[str, Any]) -> str:
        page = env["page"]
        if not page:
            return "</a>"
        shown = page.removeprefix("../") if page.startswith("../") else f"docs/{page}"
        return f" (<code>{escape(shown)}</code>)"


def runbook_page() -> str:
    """Return the page."""
    return _FRAME.format(content=MarkdownIt(renderer_cls=_Renderer).render(_SOURCE.read_text()))


if __name__ == "__main__":
    PAGE.write_text(runbook_page())
