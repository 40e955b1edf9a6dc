"""What a recorded form is: a sample value, and the product's code that writes and reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredForm:
    """A stored form. ``read`` of what ``write`` makes of ``value`` is ``value`` again.

    The sample has every field, and none with its default. So a change of any field changes the bytes.
    """

    name: str
    value: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def by_name(forms: Iterable[StoredForm]) -> dict[str, StoredForm]:
    """The forms by name. Each name is given once."""
    found: dict[str, StoredForm] = {}
    for form in forms:
        assert form.name not in found, f"{form.name} is given twice"
        found[form.name] = form
    return found
