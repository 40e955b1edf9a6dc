"""Benchmarks: `make bench` runs `python -m bench`. Other modules measure single parts, by `python -m bench.NAME`."""
