"""What the library's operators cost, each beside the same program written by hand: `python -m bench.operators`."""
