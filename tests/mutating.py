"""A pytest plugin that takes a mechanism of the product out: ``python -m pytest -p tests.mutating --mutation NAME …``.

It is loaded where it is named, and nowhere else; see :mod:`simulation.mutations`.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--mutation NAME``."""
    parser.addoption("--mutation", required=True, help="which: a name of simulation/mutations/")


def pytest_configure(config: pytest.Config) -> None:
    """Take it out before any test module is imported."""
    from simulation.mutations import MUTATIONS

    MUTATIONS[config.getoption("--mutation")].apply()
