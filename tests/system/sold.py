"""A program that reads the changes of a table of PostgreSQL by itself, and writes each of them to another one.

A test submits a copy of this file. The database is where the environment variable ``SOLD_CONNINFO`` says.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

import millwheel as mw
from millwheel import connectors
from millwheel.connectors import postgres

CONNINFO = os.environ.get("SOLD_CONNINFO", "")
INSERT = "INSERT INTO seen (operation, item, cents) VALUES (%s, %s, %s)"


class Sale(msgspec.Struct):
    item: str
    cents: int = 0


def parameters(change: postgres.ChangedRow[Sale]) -> tuple[Any, ...]:
    return change.operation, change.row.item, change.row.cents


sold = mw.Topology("sold")
source = postgres.changes(Sale, table="sales", slot="sold", publication="sold", conninfo=CONNINFO)
changes = sold.source("changes", postgres.ChangedRow[Sale], source)
changes.to("seen", connectors.database(postgres.connecting(CONNINFO), INSERT, parameters), batch_records=50)
