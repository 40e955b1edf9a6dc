"""A pytest plugin that removes a mechanism of the product: ``python -m pytest -p tests.mutating --mutation NAME …``.

pytest loads it only with ``-p``; see :mod:`simulation.mutations`.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--mutation NAME``."""
    parser.addoption("--mutation", required=True, help="which: a name of simulation/mutations/")


def pytest_configure(config: pytest.Config) -> None:
    """Apply the mutation before any test module is imported."""
    from simulation.mutations import MUTATIONS

    MUTATIONS[config.getoption("--mutation")].apply()
