"""Scenarios: stories of what may happen to a cluster, played on the simulated one, and kept as text for people."""
