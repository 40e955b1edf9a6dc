"""Hostile input, seeded: all that comes in is answered clearly, and leaves the process as it was (docs/reliability.md).

``make fuzz CASES=100000 SEED=1`` runs all surfaces; ``make test`` runs a slice of each.
"""
