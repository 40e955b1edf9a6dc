"""Benchmarks: `make bench` runs `python -m bench`. The other modules measure single parts; run them with `python -m`."""
