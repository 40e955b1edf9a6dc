"""Snapshots of running topologies: taken, read back, and restored (docs/snapshots.md)."""
