"""The samples of a soak as one HTML page without anything else: a chart for each kind of figure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from examples.demo.svg import Plot
from tests.faults.flatness import FLOORS, kind_of

_WIDTH: Final = 760
_HEIGHT: Final = 210
_COLOURS: Final = [f"hsl({41 * number % 360} 60% {35 + number % 3 * 9}%)" for number in range(9)]
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
    for kind in FLOORS:
        ours = {name.rpartition(" ")[0]: values for name, values in figures.items() if kind_of(name) == kind}
        # Cassandra's figures are of another size than all others.
        large = {name: ours.pop(name) for name in list(ours) if name.startswith("cassandra")}
        heading = kind.replace("_mb", ", MB")
        charts += [_chart(heading, times, ours), _chart(f"{heading} (Cassandra)", times, large)]
    head = f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    verdicts = escape("\n".join(text))
    return f"{head}<h1>{escape(title)}</h1>{''.join(charts)}<h2>Verdicts</h2><pre>{verdicts}</pre>"


def _chart(heading: str, times: Sequence[float], columns: Mapping[str, Sequence[float]]) -> str:
    if not columns or len(times) < 2:
        return ""
    top = max(max(values) for values in columns.values()) * 1.1 or 1.0
    start, span = times[0], times[-1] - times[0]
    plot = Plot(_WIDTH, _HEIGHT, (start, start + span), top)
    shares = (0.0, 0.5, 0.9)
    minutes = [(start + span * share, f"{span * share / 60:.1f} min") for share in shares]
    plot.grid([round(top * share, 2) for share in shares], minutes)
    keys = []
    for number, (name, values) in enumerate(columns.items()):
        style = f"c{number % len(_COLOURS)}"
        plot.line([*zip(times, values, strict=True)], style)
        keys.append(f'<span class=l><span class="s {style}"></span>{escape(name)}</span>')
    return f"<h2>{escape(heading)}</h2>{plot.render()}<div>{''.join(keys)}</div>"
