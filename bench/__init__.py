"""Benchmarks. `make bench` runs `python -m bench`. Each other module measures one part: `python -m bench.NAME`."""

import os

# Times are counted from 0 here.
os.environ.setdefault("MILLWHEEL_ANY_TIMESTAMP", "1")
