"""A hint for a misspelled name has no names that its reader may not know."""

from __future__ import annotations

from millwheel.rpc.unknown_names import UnknownNameError

KNOWN = {"shop": "shop", "shops": "secret", "shopping": None}


def test_the_nearest_name_that_may_be_read_is_the_hint() -> None:
    error = UnknownNameError("topology", "shopsz", KNOWN, "list them", "TOPOLOGY_UNKNOWN")
    assert "did you mean 'shops'" in str(error), "without a caller, as in a test"
    assert "did you mean 'shop'" in str(error.shown_to(lambda topology: topology == "shop"))
    shown = error.shown_to(lambda topology: False)
    assert str(shown) == "there is no topology 'shopsz': list them"
    assert (shown.code, shown.reason) == (error.code, "TOPOLOGY_UNKNOWN")
