"""Each form of the keyed count runs to its end: a benchmark that cannot run is found here."""

from __future__ import annotations

import pytest

from bench.keyed_count import FORMS, measure


@pytest.mark.timeout(120)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_the_keyed_count_runs(form: str) -> None:
    """The program raises an error if a result is missing or wrong."""
    assert all(figure.value > 0 for figure in measure(form, 4_000, 1))
