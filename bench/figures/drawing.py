"""Draws the plots of docs/performance.md as SVG.

The background is transparent. Each colour has a contrast of at least 4 to 1 to white and to a dark page, so one file
serves both. A plot of equal figures has equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.typing import RcKeyType

from bench.readings import Readings

__all__ = ["COLOURS", "INK", "PLOTS", "draw"]

INK: Final = "#7a7a7a"
COLOURS: Final = ("#2f81c7", "#cb5f2c", "#33904f", "#a35fc0")
_STYLE: Final[dict[RcKeyType, Any]] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.alpha": 0.25,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "millwheel",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_STAGES: Final = (("three", "third stage"), ("two", "second stage"), ("one", "first stage"), ("injector", "injector"))
_DASHES: Final = {"p50": "-", "p95": "--", "p99": ":"}


def _latency(axes: Axes, found: Readings) -> None:
    """Figure 13: a histogram of both forms."""
    for form, label in (("plain", "both off"), ("strong", "exactly-once and strong productions")):
        points = found.points(f"stage_latency.{form}.delivery.histogram")
        p50 = found.value(f"stage_latency.{form}.delivery.p50_ms")
        edges = [x for x, _ in points]
        shares = [y * 100 for _, y in points]
        axes.fill_between(edges, shares, step="pre", alpha=0.35)
        axes.step(edges, shares, where="pre", label=f"{label}: median {p50:.1f} ms")
    axes.set(xscale="log", xlabel="from hook to hook, ms", ylabel="% of the records")
    axes.xaxis.set_major_formatter("{x:g}")


def _scale(axes: Axes, found: Readings) -> None:
    """Figure 14: percentiles by the number of workers. They are simulated."""
    for colour, (form, label) in zip(COLOURS, (("strong", "guarantees on"), ("plain", "both off")), strict=False):
        for name, dashes in _DASHES.items():
            points = found.points(f"scale.{form}.{name}")
            x, y = zip(*points, strict=True)
            axes.plot(x, y, dashes, color=colour, marker="o", markersize=3, label=f"{label}, {name}")
    axes.set(xscale="log", xlabel="workers (simulated)", ylabel="ms")
    axes.set_ylim(bottom=0)
    ticks = [int(x) for x, _ in found.points("scale.strong.p50")]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xticks([], minor=True)


def _lag(axes: Axes, found: Readings) -> None:
    """Figure 15: the lag of the low watermark over time."""
    for name, label in _STAGES:
        points = found.points(f"watermark_lag.{name}.by_second")
        x, y = zip(*points, strict=True)
        axes.plot(x, y, linewidth=1, label=f"{label}: median {found.value(f'watermark_lag.{name}.p50_ms'):.0f} ms")
    axes.set(xlabel="s", ylabel="lag behind real time, ms")
    axes.set_ylim(bottom=0)


def _cache(axes: Axes, found: Readings) -> None:
    """Figure 16: processor time by the size of the cache."""
    for policy, label in (("watermark", "by watermark (MillWheel)"), ("lru", "least recently used")):
        x, y = zip(*found.points(f"cache.{policy}.cpu_us"), strict=True)
        axes.plot(x, y, marker="o", markersize=3, label=label)
    axes.set(xlabel="cache, MB", ylabel="CPU of interval and store, µs a record")
    axes.set_ylim(bottom=0)


PLOTS: Final[Mapping[str, tuple[str, Callable[[Axes, Readings], None]]]] = {
    "latency": ("cluster", _latency),
    "scale": ("scale", _scale),
    "watermark-lag": ("cluster", _lag),
    "cache": ("cache", _cache),
}
"""By the name of the file: the part whose figures it shows, and what draws it."""


def draw(found: Mapping[str, Readings], folder: Path) -> list[Path]:
    """Draw the plots of those parts that were measured. Return their files."""
    files = []
    for name, (part, plot) in PLOTS.items():
        if part not in found:
            continue
        with mpl.rc_context(_STYLE):
            figure = Plot(figsize=(7, 3.4), layout="constrained")
            axes = figure.add_subplot()
            axes.grid(visible=True)
            plot(axes, found[part])
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.3)
            file = folder / f"{name}.svg"
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        file.write_text("".join(f"{line.rstrip()}\n" for line in file.read_text().splitlines()))
        files.append(file)
    return files
