"""Installs and runs the real components of a cluster on this machine, for tests and for trying out a cluster."""
