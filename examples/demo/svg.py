"""A small SVG writer for pictures of measurements: a plot with axes, and marks whose positions are data values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["Plot"]


class Plot:
    """A plot of ``width`` x ``height`` pixels. The x axis covers ``xs``, and the y axis 0 to ``top``."""

    def __init__(self, width: int, height: int, xs: tuple[float, float], top: float) -> None:
        self.width, self.height = width, height
        self._left, self._right, self._above, self._below = 52, 12, 30, 24
        self._xs, self._top = xs, top
        self._marks: list[str] = []

    def x(self, value: float) -> float:
        """The pixel position of ``value`` from the left."""
        low, high = self._xs
        return self._left + (value - low) / (high - low) * (self.width - self._left - self._right)

    def y(self, value: float) -> float:
        """The pixel position of ``value`` from the top."""
        return self.height - self._below - value / self._top * (self.height - self._above - self._below)

    def grid(self, ys: Iterable[float], xs: Iterable[tuple[float, str]]) -> None:
        """Draw horizontal lines at ``ys``, and labels on the x axis at ``xs``."""
        for value in ys:
            at = f"{self.y(value):.1f}"
            self._add(f'<line class="grid" x1="{self._left}" x2="{self.width - self._right}" y1="{at}" y2="{at}"/>')
            self._add(f'<text class="axis" x="{self._left - 8}" y="{at}" dy="4" text-anchor="end">{value:,g}</text>')
        for place, label in xs:
            at = f"{self.x(place):.1f}"
            self._add(f'<line class="grid" x1="{at}" x2="{at}" y1="{self._above}" y2="{self.y(0):.1f}"/>')
            self._add(f'<text class="axis" x="{at}" y="{self.height - 6}" dx="3">{escape(label)}</text>')

    def area(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Fill the area below a line."""
        path = self._path(points)
        ends = f"L{self.x(points[-1][0]):.1f},{self.y(0):.1f}L{self.x(points[0][0]):.1f},{self.y(0):.1f}Z"
        self._add(f'<path class="{style}" d="{path}{ends}"/>')

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Draw a line through ``points``."""
        self._add(f'<path class="{style}" d="{self._path(points)}"/>')

    def steps(self, points: Sequence[tuple[float, float]], step: float, style: str) -> None:
        """Draw a line that keeps each value for ``step``. It has a gap where the next point is further away."""
        path = ""
        end: float | None = None
        for place, value in points:
            joined = end is not None and abs(place - end) < step / 2
            path += f"{'L' if joined else 'M'}{self.x(place):.1f},{self.y(value):.1f}H{self.x(place + step):.1f}"
            end = place + step
        self._add(f'<path class="{style}" d="{path}"/>')

    def bar(self, start: float, end: float, value: float, style: str, title: str) -> None:
        """Draw a bar from ``start`` to ``end``. ``title`` is its tooltip."""
        left, right = self.x(start), self.x(end)
        wide = max(right - left - (0.6 if right - left > 2 else 0), 0.6)
        top = min(self.y(value), self.y(0))
        shape = f'x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{self.y(0) - top:.1f}"'
        self._add(f'<rect class="{style}" {shape}><title>{escape(title)}</title></rect>')

    def band(self, start: float, end: float, style: str, title: str) -> None:
        """Fill the whole height from ``start`` to ``end``."""
        self.bar(start, end, self._top, style, title)

    def pin(self, place: float, value: float, label: str, style: str, *, row: int = 0) -> None:
        """Draw a label above the plot, with a line to its place. A larger ``row`` puts it lower."""
        at, top = self.x(place), 14 + 14 * row
        anchor = "end" if at > self.width - 110 else "start"
        shift = -5 if anchor == "end" else 5
        self._add(f'<line class="{style}" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 9}" y2="{self.y(value):.1f}"/>')
        self._add(f'<circle class="{style}" cx="{at:.1f}" cy="{self.y(value):.1f}" r="3.5"/>')
        self._add(f'<text class="{style}" x="{at + shift:.1f}" y="{top}" text-anchor="{anchor}">{escape(label)}</text>')

    def note(self, label: str) -> None:
        """Draw a heading in the upper left corner."""
        self._add(f'<text class="note" x="{self._left}" y="16">{escape(label)}</text>')

    def render(self) -> str:
        """Return the SVG element."""
        return f'<svg viewBox="0 0 {self.width} {self.height}" role="img">{"".join(self._marks)}</svg>'

    def _path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(place):.1f},{self.y(value):.1f}" for place, value in points)

    def _add(self, mark: str) -> None:
        self._marks.append(mark)
