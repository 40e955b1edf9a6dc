"""Panes in plain types, encoded as ``windows.Aggregate`` encodes them in the state of a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["encoded_panes"]


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
