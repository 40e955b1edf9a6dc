"""The benchmarks that the page's figures come from, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["BUILD", "PARTS", "Part"]

BUILD: Final = Path("build/figures")
"""Where the benchmarks write."""


@dataclass(frozen=True, slots=True)
class Part:
    """One run of a benchmark.

    Attributes:
        name: Of the part, and of its file.
        command: The module to run, and its options.
        limit: The most seconds that it may take.
        quick: More options, for little of everything.
        compiles: Whether it knows ``--pure``.
        usual: Whether it runs if no part is named.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    quick: tuple[str, ...] = ("--quick",)
    compiles: bool = False
    usual: bool = True

    @property
    def written(self) -> Path:
        """The file that the benchmark writes."""
        return BUILD / f"{self.name}.json"


_COUNT_QUICK: Final = ("--records", "20000", "--runs", "1", "--seconds", "2")
PARTS: Final = (
    Part("count", ("bench", "--only", "keyed_count", "--runs", "2"), 480, _COUNT_QUICK, compiles=True),
    Part("latency", ("bench", "--only", "latency", "--seconds", "15", "--runs", "2"), 180, _COUNT_QUICK, compiles=True),
    Part("cluster", ("bench.cluster",), 900, compiles=True),
    Part("authority", ("bench.authority",), 420),
    Part("master", ("bench.master",), 300),
    Part("cache", ("bench.cache",), 300),
    Part("sizes", ("bench.sizes",), 600, compiles=True),
    Part("spark", ("bench.spark",), 600, compiles=True),
    Part(
        "scale",
        ("bench.scale", "--cluster", "docs/figures/cluster.json", "--authority", "docs/figures/authority.json"),
        180,
    ),
    Part("peers", ("bench.peers", "--runs", "2"), 3_600, ("--records", "20000"), compiles=True, usual=False),
    Part("nexmark", ("bench.nexmark",), 3_600, compiles=True, usual=False),
)
