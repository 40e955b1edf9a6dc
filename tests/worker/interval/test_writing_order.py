"""A hook that writes to another system begins after the commit of the write before it is durable (5.1, 6.1; G1)."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.worker.messages import AsyncHook, HookFinished, Tick
from tests.worker.interval.driver import IntervalDriver


class Writes(mw.Computation[tuple[str, str], int]):
    """Counts what it has written."""

    _writes = True

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


class Calls(Writes):
    """Calls a service whose order does not matter."""

    _writes = False


def end_hooks(driver: IntervalDriver) -> int:
    """End the hooks that have begun. Returns their number."""
    hooks = driver.take(AsyncHook)
    for hook in hooks:
        with pytest.raises(StopIteration):
            hook.coroutine.send(None)
        driver.handle(HookFinished(hook.hook, None))
    return len(hooks)


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.parametrize(("computation", "begun"), [(Writes(), [1, 0, 1, 0, 1]), (Calls(), [1, 1, 1, 0, 0])])
def test_no_write_begins_before_the_last_commit(computation: Writes, begun: list[int]) -> None:
    """If the owner dies before the commit of its last write, that write alone comes again."""
    driver = IntervalDriver(computation)
    driver.deliver(("a", "1", 1), ("a", "2", 2), ("a", "3", 3))
    found = [end_hooks(driver), end_hooks(driver)]
    driver.commit()
    found += [end_hooks(driver), end_hooks(driver)]
    driver.commit()
    assert [*found, end_hooks(driver)] == begun


@pytest.mark.guarantee("G8", section="5.1")
def test_a_retry_that_waits_for_a_commit_needs_no_tick() -> None:
    """While the store does not answer, an alarm that has passed would ring again and again."""
    driver = IntervalDriver(Writes())
    driver.deliver(("a", "1", 1), ("b", "1", 2))
    failed, ended = driver.take(AsyncHook)
    failed.coroutine.close()
    driver.handle(HookFinished(failed.hook, ValueError("refused")))
    retry = driver.core.next_deadline()
    assert retry is not None
    with pytest.raises(StopIteration):
        ended.coroutine.send(None)
    driver.handle(HookFinished(ended.hook, None))
    driver.now = retry
    driver.handle(Tick())
    assert driver.core.next_deadline() is None
    assert not driver.take(AsyncHook)
    driver.commit()
    assert end_hooks(driver) == 1
