"""Benchmarks: `make bench` runs `python -m bench`. Other modules measure single parts, by `python -m bench.NAME`."""

import os

# Times are counted from 0 here.
os.environ.setdefault("MILLWHEEL_ANY_TIMESTAMP", "1")
