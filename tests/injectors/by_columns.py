"""What injectors have sent by columns, and sinks have stored as values."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.connectors.batches import EncodedBatch
from millwheel.rpc.columns import RecordColumns


def sent_by_columns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records of each delivery by columns, from now on."""
    found: list[int] = []
    to_wire = RecordColumns.to_wire

    def counted(self: RecordColumns) -> Any:
        found.append(len(self))
        return to_wire(self)

    monkeypatch.setattr(RecordColumns, "to_wire", counted)
    return found


def stored_as_values(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of values in each batch that a sink decodes, from now on."""
    found: list[int] = []
    of = EncodedBatch.parts

    def counted(self: Any, codec: Any) -> Any:
        found.append(len(self.values))
        return of(self, codec)

    monkeypatch.setattr(EncodedBatch, "parts", counted)
    return found
