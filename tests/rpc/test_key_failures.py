"""Key functions that raise, in words."""

from __future__ import annotations

from typing import Any

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.hook_failures import blocks, computation_text, failed_lately, heading
from millwheel.rpc.key_failures import key_function_text, keys_wait, merged_key_functions
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import inspection_pb2 as wire

SINCE = 1_700_000_000_000_000


def waiting(*processes: str) -> list[common.WaitingRecords]:
    return [common.WaitingRecords(process=process, oldest_us=1) for process in processes]


def failing(**fields: Any) -> wire.KeyFunctionFailure:
    one = wire.KeyFunctionFailure(
        consumer=IncarnationId("c.1"),
        stream="in",
        extractor="key function",
        error="ValueError",
        message="no\ncats",
        place="a.py:3 in f",
        attempts=7,
        since_us=SINCE,
        last_us=SINCE + 5_000_000,
    )
    one.MergeFrom(wire.KeyFunctionFailure(**fields))
    return one


def test_waiting_records_are_reported_with_processes_and_remedy() -> None:
    assert key_function_text(failing(waiting=waiting("p")), SINCE) == (
        "the key function of stream 'in' raises ValueError: no cats (a.py:3 in f), since 2023-11-14T22:13:20Z (7 "
        "attempts); records of injector process 'p' wait for their keys and are not ACKed: fix the computation's "
        "code, then `millwheel topology update`"
    )
    many = key_function_text(failing(waiting=waiting("p1", "p2", "p3", "p4", "p5")), SINCE)
    assert "records of injector processes 'p1', 'p2', 'p3' and 2 more wait" in many


def test_a_failure_for_which_nothing_waits_is_over() -> None:
    assert key_function_text(failing(), SINCE + 9_000_000) == (
        "the key function of stream 'in' raised ValueError: no cats (a.py:3 in f), the last time 4.0 s ago; 7 attempts "
        "failed, and no record waits for its key now: a record that no consumer takes is refused to its sender"
    )


def test_a_computation_is_reported_with_its_hooks_and_its_keys() -> None:
    key = failing(waiting=waiting("p"))
    only = wire.HookFailures(key_functions=[key])
    now = SINCE + 6_000_000
    assert computation_text("t/c", only, "", now) == f"computation t/c: {key_function_text(key, now)}"
    assert (heading(only, "", now), blocks(only, ""), keys_wait(only)) == ("FAILING", False, True)
    assert failed_lately(only, SINCE + 64_000_000)
    assert not failed_lately(only, SINCE + 65_000_000)
    assert not keys_wait(wire.HookFailures(key_functions=[failing()]))
    hook = wire.KeyFailure(key=b"k", hook="process_record", error="OSError", attempts=2, last_us=SINCE)
    both = wire.HookFailures(attempts=2, blocked_keys=1, oldest=[hook], last=hook, key_functions=[key])
    text = computation_text("t/c", both, "", now)
    assert text.startswith(
        "computation t/c: 1 key is blocked, and its records are not ACKed: process_record of key 'k'"
    )
    assert text.endswith(computation_text("t/c", only, "", now))
    awaited = wire.AwaitedHook(key=b"k", hook="process_record", work="a record", since_us=SINCE)
    only.awaited.append(awaited)
    assert heading(only, "", now) == "FAILING"
    assert "has been awaiting for 6.0 s" in computation_text("t/c", only, "", now)


def test_workers_together_show_the_newest_error_and_all_waiting() -> None:
    parts = [
        failing(attempts=number, since_us=SINCE - number, last_us=SINCE + at, error=f"E{at}", waiting=waiting(*names))
        for number, at, names in ((1, 5, ("q",)), (2, 9, ()), (4, 7, ("p", "q")))
    ]
    other = failing(stream="before")
    first, whole = merged_key_functions([*parts, other])
    assert first == other
    assert (whole.stream, whole.attempts, whole.since_us) == ("in", 7, SINCE - 4)
    assert (whole.last_us, whole.error) == (SINCE + 9, "E9")
    assert whole.waiting == waiting("p", "q")
