"""Mutations: mechanisms that are removed on purpose, to verify that a checker or a test fails without them.

``python -m simulation --mutation NAME`` runs seeds without one mechanism. ``pytest -p tests.mutating --mutation NAME``
runs tests without it. ``python -m simulation.mutations`` (``make test-mutations``) tries all mutations, and shows what
caught each.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from simulation.mutations.base import MUTATIONS, Mutation

__all__ = ["MUTATIONS", "Mutation"]

for _module in iter_modules(__path__):  # each registers its mutations, in the order of the modules' names
    if _module.name != "__main__":
        import_module(f"{__name__}.{_module.name}")
