"""Panes in plain types, encoded as ``windows.Aggregate`` encodes them in the state of a key.

Columns are stored, so each form that ever was is listed here, with the NumPy types of its columns. A form that is not
listed is refused, and not guessed: a later version may have written it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["check_form", "encoded_panes"]

_KINDS: Final = {
    "count": ["<i8"],
    "sum int": ["<i8"],
    "sum float": ["<f8"],
    "mean int": ["<i8", "<i8"],
    "mean float": ["<i8", "<f8"],
    "extreme int": ["<i8", "|b1"],
    "extreme float": ["<f8", "|b1"],
}


def check_form(form: bytes, kinds: Sequence[str]) -> None:
    """Check that this version knows the form, which has columns of these NumPy types.

    Raises:
        ValueError: It does not, or the form has other columns.
    """
    plain = msgspec.msgpack.decode(form)
    wanted = _kinds_of(plain)
    if wanted != list(kinds):
        raise ValueError(f"columns of the form {plain!r} have the types {wanted}, and these have {list(kinds)}")


def _kinds_of(form: Any) -> list[str]:
    if isinstance(form, list):
        return [kind for _, one in form for kind in _kinds_of(one)]
    if form not in _KINDS:
        raise ValueError(f"columns of the form {form!r}, which this version does not know")
    return _KINDS[form]


def encoded_panes(form: bytes, panes: dict[tuple[int, int], Sequence[Column]]) -> bytes:
    """The state of a key with these panes, as ``windows.Aggregate`` encodes it.

    Args:
        form: What the columns are, encoded.
        panes: By start and end, the columns with the pane's row alone.
    """
    plain_form = msgspec.msgpack.decode(form)
    plain = {bounds: (-1, _plain_accumulators(plain_form, list(columns))[0], 0) for bounds, columns in panes.items()}
    return msgspec.msgpack.encode(plain)


def _plain_accumulators(form: Any, columns: list[Column]) -> list[Any]:
    """Accumulators in plain types, encoded as those of the aggregators. It takes their columns from the list."""
    if isinstance(form, list):
        fields = [(name, _plain_accumulators(one, columns)) for name, one in form]
        names = [name for name, _ in fields]
        return [dict(zip(names, row, strict=True)) for row in zip(*(of for _, of in fields), strict=True)]
    first: list[Any] = columns.pop(0).tolist()
    if form.startswith("mean "):
        return list(zip(first, columns.pop(0).tolist(), strict=True))
    if form.startswith("extreme "):
        return [one if has else None for one, has in zip(first, columns.pop(0).tolist(), strict=True)]
    return first
