"""What the children of splits and merges start from, against a model of single keys (7.2, G7)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.authority.keyed import KeyedGroup
from millwheel.model.keys import KeyInterval
from millwheel.rpc.watermarks import WatermarkReport

CELLS = [b"", *(bytes([97 + number]) for number in range(6))]


@st.composite
def intervals(draw: st.DrawFn) -> KeyInterval:
    start, end = sorted(draw(st.lists(st.integers(0, len(CELLS)), min_size=2, max_size=2, unique=True)))
    return KeyInterval(CELLS[start], None if end == len(CELLS) else CELLS[end])


@pytest.mark.guarantee("G7", section="7.2")
@given(st.lists(st.tuples(intervals(), st.integers(0, 100)), min_size=1, max_size=12))
@settings(max_examples=300)
def test_a_share_starts_from_the_smallest_of_the_keys_it_takes(steps: list[tuple[KeyInterval, int]]) -> None:
    group = KeyedGroup("c.1")
    model = {cell: state.watermark for state in group.states() for cell in CELLS if cell in state.member}
    for sequencer, (keys, watermark) in enumerate(steps, start=1):
        cells = [cell for cell in CELLS if cell in keys]
        taken = group.accept(keys, sequencer)
        assert taken.watermark == min(model[cell] for cell in cells), (
            "a merged range: the minimum; a part: its parent's"
        )
        group.report(WatermarkReport("c.1", keys, sequencer, watermark), 0)
        model.update(dict.fromkeys(cells, watermark))
        known = {cell: state.watermark for state in group.states() for cell in CELLS if cell in state.member}
        assert known == model, "what an acceptance cuts keeps its value outside it"
        assert group.smallest() == min(model.values())
