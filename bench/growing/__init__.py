"""State that grows, measured: `python -m bench.growing`."""
