"""A topology with a source of three splits, of which one cannot be read, and a sink."""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel.connectors import Read, Sink, SinkBatch, SinkShard, SinkWriter, Source, SplitReader, Splits

NOON = 1_767_268_800_000_000
READ = 120
"""How many of the 500 bids of a split are read. The others are behind."""


class Bid(msgspec.Struct):
    auction: str
    cents: int


class Days(Source[Bid, int]):
    """A part of each day is a split."""

    async def splits(self) -> Splits:
        return Splits(["morning", "evening", "night"], final=True)

    async def open_reader(self, split: str, position: int | None) -> SplitReader[Bid, int]:
        if split == "night":
            raise ConnectionError("the night has no server")
        return Day(split, position or 0)


class Day(SplitReader[Bid, int]):
    def __init__(self, split: str, position: int) -> None:
        self.split = split
        self.position = position

    async def read(self) -> Read[Bid, int]:
        upto = READ if self.split == "morning" else 500
        records = [
            (Bid("lamp", number), mw.Timestamp(NOON + number * 1_000_000)) for number in range(self.position, upto)
        ]
        self.position = upto
        return Read(records, upto, behind=500 - upto)


class Forgets(Sink[Bid], SinkWriter[Bid]):
    """Keeps nothing."""

    async def open_writer(self, place: SinkShard) -> SinkWriter[Bid]:
        return self

    async def write(self, batch: SinkBatch[Bid]) -> None: ...


auctions = mw.Topology("auctions")
auctions.source("bids", Bid, Days()).to("bids-table", Forgets())
