"""Mechanisms taken out on purpose, to see that somebody misses them.

``python -m simulation --mutation NAME`` runs seeds without one; ``pytest -p tests.mutating --mutation NAME`` runs tests
without it; ``python -m simulation.mutations`` (``make test-mutations``) tries all of them, and shows who missed which.
"""

from __future__ import annotations

from simulation.mutations import (
    authority,
    changes_authority,
    changes_clients_1,
    changes_clients_2,
    changes_dedup_1,
    changes_dedup_2,
    changes_interval,
    changes_log,
    changes_master,
    changes_terms,
    changes_workers,
    commits,
    divided,
    evidence,
    fence,
    ids,
    injecting,
    late,
    logs,
    order,
    reshaping,
    rows,
    stores,
    takeover,
    timers,
    watermarks,
    weak,
    windows,
)
from simulation.mutations.base import MUTATIONS, Mutation

__all__ = [
    "MUTATIONS",
    "Mutation",
    "authority",
    "changes_authority",
    "changes_clients_1",
    "changes_clients_2",
    "changes_dedup_1",
    "changes_dedup_2",
    "changes_interval",
    "changes_log",
    "changes_master",
    "changes_terms",
    "changes_workers",
    "commits",
    "divided",
    "evidence",
    "fence",
    "ids",
    "injecting",
    "late",
    "logs",
    "order",
    "reshaping",
    "rows",
    "stores",
    "takeover",
    "timers",
    "watermarks",
    "weak",
    "windows",
]
