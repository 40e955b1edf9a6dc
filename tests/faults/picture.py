"""The samples of a soak as one HTML page without anything else: a chart for each kind of figure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from examples.demo.svg import Plot
from tests.faults.flatness import kind_of

__all__ = ["page"]

_WIDTH: Final = 760
_HEIGHT: Final = 210
_COLOURS: Final = ("#1f6fb2", "#d1661f", "#2c8a4b", "#b0303a", "#7a57b0", "#7a6140", "#c05aa3", "#4d4d4d", "#8f8f1f")
_TITLES: Final = {
    "memory_mb": "Memory (resident), MB",
    "descriptors": "File descriptors",
    "threads": "Threads",
    "tasks": "asyncio tasks",
    "db_mb": "etcd's database, MB",
    "data_mb": "Cassandra's data and commit log, MB",
}
_STYLE: Final = (
    "body{font:14px sans-serif;margin:24px;color:#222;background:#fff}h2{font-size:15px;margin:22px 0 4px}"
    f"svg{{display:block;width:{_WIDTH}px}}text{{font-size:11px}}path{{fill:none;stroke-width:1.5}}.grid{{stroke:#ddd}}"
    ".l{display:inline-block;margin-right:14px}.s{display:inline-block;width:14px;height:3px;vertical-align:middle;"
    "margin-right:5px}pre{background:#f4f4f4;padding:10px;width:fit-content}"
    + "".join(f".c{number}{{stroke:{colour};background:{colour}}}" for number, colour in enumerate(_COLOURS))
)


def page(title: str, times: Sequence[float], figures: Mapping[str, Sequence[float]], text: Sequence[str]) -> str:
    """``times``: seconds. ``figures``: a column for each name, whose last word is its kind."""
    charts = []
    for kind, heading in _TITLES.items():
        ours = {name.rpartition(" ")[0]: values for name, values in figures.items() if kind_of(name) == kind}
        # Of another size than all the rest.
        large = {name: ours.pop(name) for name in list(ours) if name.startswith("cassandra")}
        charts.append(_chart(heading, times, ours))
        charts.append(_chart(heading if kind == "data_mb" else f"{heading} (Cassandra)", times, large))
    lines = escape("\n".join(text))
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1>{''.join(charts)}<h2>Verdicts</h2><pre>{lines}</pre>"
    )


def _chart(heading: str, times: Sequence[float], columns: Mapping[str, Sequence[float]]) -> str:
    if not columns or len(times) < 2:
        return ""
    top = max(max(values) for values in columns.values()) * 1.1 or 1.0
    start, span = times[0], times[-1] - times[0]
    plot = Plot(_WIDTH, _HEIGHT, (start, start + span), top)
    shares = (0.0, 0.5, 0.9)
    plot.grid(
        (round(top * share, 2) for share in shares),
        ((start + span * share, f"{span * share / 60:.1f} min") for share in shares),
    )
    keys = []
    for number, (name, values) in enumerate(columns.items()):
        style = f"c{number % len(_COLOURS)}"
        plot.line([*zip(times, values, strict=True)], style)
        keys.append(f'<span class=l><span class="s {style}"></span>{escape(name)}</span>')
    return f"<h2>{escape(heading)}</h2>{plot.render()}<div>{''.join(keys)}</div>"
