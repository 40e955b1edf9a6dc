"""Both forms of a report mean the same (7.2, G4): one history of a shard, with single reports and with columns."""

from __future__ import annotations

from dataclasses import dataclass
from operator import ge

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.authority.keyed import KeyedGroup
from millwheel.authority.messages import ReportsReceived
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import WatermarkReport
from tests.authority.shard import GROUP, Shard, by_columns, cut

CELLS = [b"", *(bytes([97 + n]) for n in range(5))]
HOLDS = [HoldKind.HOLD_KIND_UNSPECIFIED, HoldKind.HOLD_KIND_TIMER]

BY_COLUMNS = {
    "group",
    "member",
    "sequencer",
    "watermark",
    "input_watermark",
    "hold",
    "subject",
    "number",
}
ONLY_SINGLY = {"idle", "pending"}
"""An interval is never idle, and a report with pending work has no columns."""


def test_each_field_of_a_report_goes_by_columns_or_never() -> None:
    assert set(WatermarkReport.__struct_fields__) == BY_COLUMNS | ONLY_SINGLY, (
        "a new field: give it a column in millwheel/rpc/report_columns.py, or say here why it has none"
    )


@dataclass(frozen=True)
class Said:
    """A report of one of the owners that were ever accepted. ``owner`` counts them round and round."""

    owner: int
    watermark: int
    number: int
    hold: HoldKind.ValueType
    subject: str


@st.composite
def intervals(draw: st.DrawFn) -> KeyInterval:
    first, last = sorted(draw(st.lists(st.integers(0, len(CELLS)), min_size=2, max_size=2, unique=True)))
    return KeyInterval(CELLS[first], CELLS[last] if last < len(CELLS) else None)


said = st.builds(
    Said, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.sampled_from(HOLDS), st.sampled_from(["", "x"])
)
steps = st.one_of(intervals(), st.lists(said, min_size=1, max_size=4), st.sampled_from(["flush", "restart"]))


def members(shard: Shard) -> list[tuple[object, ...]]:
    """All that a shard keeps of each member, but for its watermark."""
    return [
        (one.member, one.sequencer, one.last_report, one.input_watermark, one.hold, one.subject, one.reported_at)
        for one in keyed(shard).states()
    ]


def watermarks(shard: Shard) -> list[int]:
    """The watermark of each member, that of the group, and the one that listeners know."""
    group = keyed(shard)
    reached = [one.watermark for one in group.states()]
    assert min(reached) >= group.value, "a member is behind the decided value"
    return [*reached, group.value, shard.known()]


def keyed(shard: Shard) -> KeyedGroup:
    group = shard.core.registry.get(GROUP)
    assert isinstance(group, KeyedGroup)
    return group


@pytest.mark.guarantee("G4", section="7.2")
@settings(max_examples=150)
@given(st.lists(steps, max_size=20), st.booleans())
def test_both_forms_of_reports_give_the_same(history: list[KeyInterval | list[Said] | str], rising: bool) -> None:
    """Reports that go back count as the value, which rises within a message only if the reports are single.

    So their watermarks by columns may be smaller, and never larger. If all watermarks rise, both forms are equal.
    """
    singly, columns = Shard(), Shard()
    owners: list[tuple[KeyInterval, int]] = []
    for place, step in enumerate([*cut(b"c"), *history]):
        if isinstance(step, KeyInterval):
            owners.append((step, len(owners) + 1))
            singly.accept(*owners[-1])
            columns.accept(*owners[-1])
        elif isinstance(step, list):
            newest = {owners[one.owner % len(owners)]: one for one in step}
            reports = [
                WatermarkReport(
                    GROUP,
                    keys,
                    sequencer,
                    one.watermark + 10 * place * rising,
                    place,
                    one.hold,
                    one.subject,
                    number=one.number,
                )
                for (keys, sequencer), one in newest.items()
            ]
            assert singly.receive(ReportsReceived(reports)) == columns.receive(by_columns(reports))
        else:
            for shard in (singly, columns):
                shard.flush() if step == "flush" else shard.restart()
        assert members(singly) == members(columns)
        before, after = watermarks(singly), watermarks(columns)
        assert before == after if rising else all(map(ge, before, after))
    singly.core.check_invariants()
    columns.core.check_invariants()
