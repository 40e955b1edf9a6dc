"""What `topology describe` says of how records run: by columns, many at a time, or one by one."""

from __future__ import annotations

import pytest

from millwheel.cli.column_use import plain_columns, print_column_use
from millwheel.rpc.v1 import inspection_pb2 as wire

TAKEN = wire.HookTime(hook="process_record", calls=8, by_columns=6)
KEYED = [
    wire.InputColumns(stream="shop/a"),
    wire.InputColumns(stream="shop/b", by_values="its key is computed by code"),
]
USES = {
    "fast": wire.ComputationColumns(inputs=KEYED),
    "slow": wire.ComputationColumns(by_records="it has no tumbling windows of aggregates"),
    "model": wire.ComputationColumns(in_batches=True),
    "table-batches": wire.ComputationColumns(in_batches=True, inputs=KEYED),
    "new": None,
}


def test_describe_says_how_records_run_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    print_column_use([{"name": name, "columns": plain_columns(use, [TAKEN])} for name, use in USES.items()])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "",
        "COMPUTATION INPUT RECORDS RUN WHY NOT BY COLUMNS SHARE BY COLUMNS",
        "fast shop/a by columns 75.0%",
        "fast shop/b by columns, tables by rows its key is computed by code 75.0%",
        "slow by records it has no tumbling windows of aggregates",
        "model many at a time",
        "table-batches shop/a many at a time, tables by columns",
        "table-batches shop/b many at a time, tables by rows its key is computed by code",
    ]


def test_nothing_is_said_before_a_worker_has_reported(capsys: pytest.CaptureFixture[str]) -> None:
    print_column_use([{"name": "new", "columns": plain_columns(None, [])}])
    assert capsys.readouterr().out == ""


def test_a_share_needs_records() -> None:
    shown = [plain_columns(use, []) for use in (USES["fast"], USES["slow"])]
    assert [one and one["share_by_columns"] for one in shown] == [None, None]
