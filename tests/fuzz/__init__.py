"""Hostile input, seeded: all that comes in is answered clearly, and leaves the process as it was (docs/reliability.md).

``python -m tests.fuzz --cases 100000 --seed 1`` runs all surfaces; ``make test`` runs a slice of each.
"""
