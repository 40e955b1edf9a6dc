"""Figures of a whole cluster: `make bench-cluster`, and `make bench-interval` for an interval with 1 GB of state."""
