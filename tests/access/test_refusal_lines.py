"""Lines of refusals in the audit log: few, and none lost (G13)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.rpc.access.refusal_lines import OTHERS, RefusalLines, RefusedCall
from millwheel.rpc.principal import Principal

INTERVAL, MOST = 60.0, 5


def refusal(name: str = "eve", peer: str = "ipv4:10.0.0.1:5000", reason: str = "ROLE_MISSING") -> RefusedCall:
    return RefusedCall(Principal(name), peer, "MoveInterval", "PERMISSION_DENIED", reason)


def test_a_port_makes_no_new_kind_and_a_host_does() -> None:
    lines = RefusalLines(INTERVAL, MOST)
    assert lines.takes(refusal(), 0)
    assert not lines.takes(refusal(peer="ipv4:10.0.0.1:5001"), 0)
    assert not lines.takes(refusal(peer="ipv4:10.0.0.1:5002"), 0)
    assert lines.takes(refusal(peer="ipv6:[::1]:5000"), 0)
    assert lines.due(INTERVAL - 1) == []
    assert lines.due(INTERVAL) == [(refusal(peer="ipv4:10.0.0.1:5002"), 2)]
    assert lines.due(2 * INTERVAL) == []
    assert lines.takes(refusal(), 2 * INTERVAL), "the flood is over"


def test_a_line_at_the_end_of_an_interval_begins_the_next() -> None:
    lines = RefusalLines(INTERVAL, MOST)
    written = 0
    for second in range(600):
        written += lines.takes(refusal(), second)
        written += len(lines.due(second))
    assert written == 10


calls = st.tuples(st.integers(0, 12), st.sampled_from([0.0, 1.0, 30.0, 61.0]), st.booleans())


@given(st.lists(calls, max_size=60))
def test_lines_are_few_and_count_every_refusal(events: list[tuple[int, float, bool]]) -> None:
    lines, now = RefusalLines(INTERVAL, MOST), 0.0
    came, reported = 0, 0
    written: set[tuple[str, float]] = set()
    for name, step, reports in events:
        now += step
        came += 1
        if lines.takes(refusal(f"caller-{name}"), now):
            reported += 1
            written.add((f"caller-{name}", now))
        for last, number in lines.due(now) if reports else []:
            reported += number
            written.add((last.principal.name, now))
    for one, when in written:
        others = [other for name, other in written if name == one and other != when]
        assert all(abs(when - other) >= INTERVAL for other in others), "two lines of a kind in one interval"
    rest = lines.due(now, all_kinds=True)
    assert len(rest) <= MOST + 1
    assert reported + sum(number for _, number in rest) == came
    assert sum(one is OTHERS for one, _ in rest) <= 1
