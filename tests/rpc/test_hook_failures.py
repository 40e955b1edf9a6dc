"""Failures of hooks in words."""

from __future__ import annotations

import pytest

from millwheel.rpc.hook_failures import (
    blocks,
    computation_text,
    failed_lately,
    failure_text,
    heading,
    merged,
    names_remedy,
)
from millwheel.rpc.v1 import cluster_pb2 as cluster
from millwheel.rpc.v1 import inspection_pb2 as wire

SINCE = 1_700_000_000_000_000
FAILURE = wire.KeyFailure(
    key=b"cat",
    hook="process_record",
    error="ValueError",
    message="no\ncats",
    place="a.py:3 in f",
    attempts=7,
    since_us=SINCE,
    last_us=SINCE + 5_000_000,
    next_attempt_us=SINCE + 9_500_000,
)


def changed(**fields: object) -> wire.KeyFailure:
    other = wire.KeyFailure()
    other.CopyFrom(FAILURE)
    other.MergeFrom(wire.KeyFailure(**fields))  # type: ignore[arg-type]
    return other


def changed_oldest(failures: wire.HookFailures, **fields: object) -> wire.HookFailures:
    other = wire.HookFailures()
    other.CopyFrom(failures)
    other.oldest[0].MergeFrom(wire.KeyFailure(**fields))  # type: ignore[arg-type]
    return other


def test_a_long_message_is_shown_whole() -> None:
    assert "x" * 900 in failure_text(changed(message="x" * 900), SINCE)


def test_code_in_a_message_keeps_its_lines() -> None:
    """The remedy of TooLargeError shows a loop, which is unreadable on one line."""
    text = failure_text(changed(message="too\nlarge, for example\n    for a in b:\n        c(a)"), SINCE)
    assert text.startswith(
        "process_record of key 'cat' raises ValueError: too large, for example\n    for a in b:\n        c(a)\n"
        " (a.py:3 in f), since"
    )


def test_a_blocked_key_is_shown_as_one_sentence() -> None:
    assert failure_text(FAILURE, SINCE + 6_000_000) == (
        "process_record of key 'cat' raises ValueError: no cats (a.py:3 in f), since 2023-11-14T22:13:20Z "
        "(7 attempts); next attempt in 3.5 s; it is tried again by itself; if that does not help: fix the code, or "
        "give such records up by `on_failure=mw.dead_letter()`, an argument of the step that fails; then "
        "`millwheel topology update MODULE:ATTR`"
    )
    assert "; next attempt now; it is tried again" in failure_text(FAILURE, SINCE + 10_000_000)
    permanent = failure_text(changed(permanent=True), SINCE)
    assert "trying again does not help: fix the code, or give such records up" in permanent
    assert permanent.endswith("the step that fails; then `millwheel topology update MODULE:ATTR`")


def test_a_quicker_remedy_comes_before_new_code() -> None:
    """Regression: the rollback, which is right at night, was the last of four remedies."""
    failing = wire.HookFailures(attempts=9, blocked_keys=1, oldest=[FAILURE], last=FAILURE)
    for stopped in ("", "why"):
        text = computation_text("t/c", failing, stopped, SINCE, "go back")
        assert text.index("; go back; otherwise fix the code") < text.index("`millwheel topology update MODULE:ATTR`")
    missing = changed(error="ModuleNotFoundError")
    assert "; go back; otherwise if the module is yours" in failure_text(missing, SINCE, first="go back")
    lost = changed(dead_letter_problem="fix its key")
    assert failure_text(lost, SINCE, first="go back").endswith("; go back; fix its key")


def test_a_stopped_computation_is_not_said_to_try_again() -> None:
    """`key inspect` said both: that the key waits for an update, and that it is tried again by itself."""
    for permanent in (False, True):
        text = failure_text(changed(permanent=permanent), SINCE, stopped=True)
        assert "again" not in text
        assert text.endswith("then `millwheel topology update MODULE:ATTR`: it goes on where it stopped")


def test_a_module_that_is_not_packaged_names_the_option() -> None:
    missing = changed(error="ModuleNotFoundError", message="No module named 'prices'")
    for stopped in (False, True):
        text = failure_text(missing, SINCE, stopped=stopped)
        assert "package it too: `millwheel topology update ... --include MODULE`" in text
        assert "dead_letter" not in text


def test_a_dead_letter_without_a_key_has_its_own_remedy() -> None:
    """Regression: the remedy was to use dead letters, although the topology already did."""
    problem = "its dead letter has no key at computation `repair`: KeyError: 'x': fix `repair`'s key function"
    for permanent in (False, True):
        failure = changed(dead_letter_problem=problem, permanent=permanent)
        for stopped in (False, True):
            assert failure_text(failure, SINCE + 6_000_000, stopped=stopped) == (
                "process_record of key 'cat' raises ValueError: no cats (a.py:3 in f), since 2023-11-14T22:13:20Z "
                f"(7 attempts); next attempt in 3.5 s; {problem}"
            )


def test_a_computation_has_stopped_or_blocks_keys_or_goes_on() -> None:
    failing = wire.HookFailures(attempts=9, blocked_keys=2, oldest=[FAILURE], last=FAILURE)
    assert computation_text("t/c", failing, "", SINCE).startswith(
        "computation t/c: 2 keys are blocked, and their records are not ACKed: process_record of key 'cat' raises"
    )
    assert computation_text("t/c", failing, "why", SINCE).startswith(
        "computation t/c has stopped by its failure policy: process_record of key 'cat'"
    )
    stopped = computation_text("t/c", changed_oldest(failing, permanent=True), "why", SINCE)
    assert "`on_failure=mw.dead_letter()`" in stopped
    assert stopped.count("fix the code") == stopped.count("`millwheel topology update ") == 1
    over = wire.HookFailures(attempts=9, last=FAILURE)
    assert computation_text("t/c", over, "", SINCE + 35_000_000) == (
        "computation t/c: process_record raised ValueError: no cats (a.py:3 in f), the last time 30 s ago, for key "
        "'cat', whose work was given up; 9 attempts failed, and no key is blocked now: this problem ends by itself "
        "within a minute; see what was given up by `millwheel dead-letter list t`"
    )
    assert failed_lately(over, SINCE + 35_000_000)
    assert not failed_lately(over, SINCE + 66_000_000)
    assert not failed_lately(wire.HookFailures(), SINCE)


def test_intervals_together_show_oldest_keys_and_newest_failure() -> None:
    parts = [
        wire.HookFailures(
            attempts=number,
            blocked_keys=2,
            oldest=[changed(since_us=SINCE + number)],
            last=changed(last_us=SINCE + number * 1_000),
        )
        for number in range(1, 6)
    ]
    whole = merged(reversed(parts))
    assert (whole.attempts, whole.blocked_keys) == (15, 10)
    assert [one.since_us - SINCE for one in whole.oldest] == [1, 2, 3]
    assert whole.last.last_us == SINCE + 5_000
    assert not merged([wire.HookFailures()]).HasField("last")


@pytest.mark.parametrize(
    ("name", "part", "key", "said"),
    [
        ("k/orders-splits", cluster.CONNECTOR_PART_FINDS_SPLITS, b"", "the search for splits of source k/orders has"),
        ("k/orders-reader", cluster.CONNECTOR_PART_READS, b"0", "the read of split '0' of source k/orders has"),
        ("k/table", cluster.CONNECTOR_PART_WRITES, b"0", "the write of shard '0' of sink k/table has"),
    ],
    ids=["a search", "a read", "a write"],
)
def test_a_connector_that_waits_is_named_as_such(
    name: str, part: cluster.ConnectorPart.ValueType, key: bytes, said: str
) -> None:
    """Regression: the text had advice for hooks of users, such as asyncio.timeout."""
    awaited = wire.AwaitedHook(key=key, hook="process_timer", work="timer ''", since_us=SINCE)
    text = computation_text(name, wire.HookFailures(awaited=[awaited]), "", SINCE + 14_000_000, part=part)
    assert text.startswith(f"{said} waited 14")
    assert "asyncio" not in text


def test_an_endless_hook_is_reported_alone_and_beside_failures() -> None:
    awaited = wire.AwaitedHook(key=b"k1", hook="process_record", work="record of stream 'in'", since_us=SINCE)
    later = wire.AwaitedHook(key=b"k2", hook="process_timer", work="timer 't'", since_us=SINCE + 1)
    failing = wire.HookFailures(attempts=9, blocked_keys=2, oldest=[FAILURE], last=FAILURE)
    now = SINCE + 120_000_000
    only = merged([wire.HookFailures(awaited=[later]), wire.HookFailures(awaited=[awaited])])
    said = "process_record of key 'k1' has been awaiting for 2 min (record of stream 'in'); the key's records"
    assert computation_text("t/c", only, "", now).startswith(f"computation t/c: {said}")
    assert (heading(only, "", now), blocks(only, ""), names_remedy(only, "")) == ("AWAITING", True, True)
    both = merged([only, failing])
    text = computation_text("t/c", both, "", now)
    assert text.startswith("computation t/c: 2 keys are blocked")
    assert said in text
    assert (heading(both, "", now), names_remedy(both, "")) == ("FAILING", True)
    over = merged([only, wire.HookFailures(attempts=9, last=FAILURE)])
    assert "raised" not in computation_text("t/c", over, "", now), "that was long ago"
