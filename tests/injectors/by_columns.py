"""What injectors have sent by columns."""

from __future__ import annotations

from typing import Any

import pytest

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
