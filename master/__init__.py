"""The master: topologies, interval maps and their assignment to workers (7.1)."""
