"""The samples of a soak as one HTML page without anything else: a chart for each kind of figure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from tests.faults.flatness import kind_of

__all__ = ["page"]

_WIDTH: Final = 760
_HEIGHT: Final = 210
_LEFT: Final = 70
_BOTTOM: Final = 26
_COLOURS: Final = ("#1f6fb2", "#d1661f", "#2c8a4b", "#b0303a", "#7a57b0", "#7a6140", "#c05aa3", "#4d4d4d", "#8f8f1f")
_TITLES: Final = {
    "memory_mb": "Memory (resident), MB",
    "descriptors": "File descriptors",
    "threads": "Threads",
    "tasks": "asyncio tasks",
    "db_mb": "etcd's database, MB",
    "data_mb": "Cassandra's data and commit log, MB",
}
_STYLE: Final = """body{font:14px sans-serif;margin:24px;color:#222;background:#fff}h2{font-size:15px;margin:22px 0 4px}
svg{display:block}.l{display:inline-block;margin-right:14px}.s{display:inline-block;width:14px;height:3px;
vertical-align:middle;margin-right:5px}pre{background:#f4f4f4;padding:10px;width:fit-content}"""


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
    span = times[-1] - times[0]

    def point(at: float, value: float) -> str:
        x = _LEFT + (at - times[0]) / span * (_WIDTH - _LEFT - 8)
        y = (_HEIGHT - _BOTTOM) * (1 - value / top) + 4
        return f"{x:.1f},{y:.1f}"

    def label(value: float) -> str:
        return f"{value:,.0f}" if top >= 10 else f"{value:.2f}"

    parts = []
    for share in (0.0, 0.5, 1.0):
        left, y = point(times[0], top * share).split(",")
        parts.append(f'<line x1="{left}" y1="{y}" x2="{_WIDTH - 8}" y2="{y}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end" dy="4" font-size="11">{label(top * share)}</text>'
        )
        x = point(times[0] + span * share, 0).split(",")[0]
        anchor = "end" if share == 1.0 else "start" if share == 0.0 else "middle"
        minutes = f"{span * share / 60:.1f} min"
        parts.append(f'<text x="{x}" y="{_HEIGHT - 6}" text-anchor="{anchor}" font-size="11">{minutes}</text>')
    keys = []
    for number, (name, values) in enumerate(columns.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(point(at, value) for at, value in zip(times, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        keys.append(f'<span class=l><span class=s style="background:{colour}"></span>{escape(name)}</span>')
    drawn = f'<svg width="{_WIDTH}" height="{_HEIGHT}">{"".join(parts)}</svg>'
    return f"<h2>{escape(heading)}</h2>{drawn}<div>{''.join(keys)}</div>"
