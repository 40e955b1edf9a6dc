"""Tables of Delta Lake keep the contract of sinks (G1, G3, G15)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from millwheel.connectors import Sink, write_delta
from millwheel.testing.connectors import SinkContract
from tests.connectors.delta.given import rows_in
from tests.connectors.files.given import Sale, without_syncs


class WriteDelta(SinkContract[Sale]):
    record_type = Sale

    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> Iterator[None]:
        self.table = tmp_path / "sales"
        with without_syncs():
            yield

    def make_sink(self) -> Sink[Sale]:
        return write_delta(self.table, Sale)

    def stored(self) -> Sequence[int]:
        return [int(row["cents"]) for row in rows_in(self.table)] if self.table.exists() else []

    def value(self, number: int) -> Sale:
        return Sale("tea", number)

    def number_of(self, value: Sale) -> int:
        return value.cents

    @contextmanager
    def away(self) -> Iterator[None]:
        """Something else has the name of the folder, such as the place where a disk is mounted."""
        elsewhere = self.table.rename(self.table.with_name("elsewhere"))
        self.table.touch()
        yield
        self.table.unlink()
        elsewhere.rename(self.table)


@pytest.mark.guarantee("G1", "G3", "G15")
class TestTable(WriteDelta):
    pass


@pytest.mark.guarantee("G1", "G3")
class TestPartitions(WriteDelta):
    keeps_order = False

    def make_sink(self) -> Sink[Sale]:
        return write_delta(self.table, Sale, partition_by="cents")
