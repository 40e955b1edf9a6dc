"""Hostile input from seeds: the answer is clear, and the process stays as it was (docs/reliability.md).

``make fuzz CASES=100000 SEED=1`` runs all surfaces; ``make test`` runs a slice of each.
"""
