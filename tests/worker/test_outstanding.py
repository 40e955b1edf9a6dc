"""A batch is answered for when every record is refused or ACKed, in any steps in which that comes (6.1.1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.worker.shell.outstanding import OutstandingBatches

ACKED, FULL = wire.DELIVERY_OUTCOME_ACKED, wire.DELIVERY_OUTCOME_REFUSED_FULL


@given(st.integers(1, 6), st.sets(st.integers(0, 5)), st.lists(st.sets(st.integers(0, 5)), max_size=4))
def test_the_last_answer_is_known_as_the_last_in_every_receivers_way_of_answering(
    count: int, refused: set[int], rounds: list[set[int]]
) -> None:
    """As receivers do: first refuse some, then ACK what is committed, naming all that is not."""
    refused &= set(range(count))
    owed = OutstandingBatches()
    owed.add(1, count)
    open_records = set(range(count)) - refused
    if refused:
        assert owed.answered(1, FULL, sorted(refused)) == (not open_records)
    for committed in [*rounds, open_records]:
        if not open_records:
            break
        open_records = open_records - committed
        assert owed.answered(1, ACKED, sorted(open_records | refused)) == (not open_records)
    assert 1 not in owed
    assert len(owed) == 0


def test_other_outcomes_end_a_batch_and_unknown_tokens_are_owed_nothing() -> None:
    owed = OutstandingBatches()
    for token, outcome in enumerate(
        [wire.DELIVERY_OUTCOME_NOT_OWNER, wire.DELIVERY_OUTCOME_INVALID, wire.DELIVERY_OUTCOME_REFUSED_SEQUENCER, FULL]
    ):
        owed.add(token, 3)
        assert token in owed
        assert owed.answered(token, outcome, ())
    assert owed.answered(99, ACKED, ())
    assert list(owed) == []
