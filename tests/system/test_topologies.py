"""Topologies come and go beside each other without effect on the others (G8, G14 aside; section 7.1)."""

from __future__ import annotations

import asyncio

import pytest

import millwheel as mw
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from tests.patience import patience
from tests.system import words as program
from tests.system.server import WAIT, Server, run_cli
from tests.system.speaking import SOURCE, read, speak, submit, submit_source
from tests.system.words import Seen, Word


def varied(name: str) -> str:
    """The words topology under another name, with streams of its own."""
    source = SOURCE.replace('"words"', f'"{name}"').replace('"spoken"', f'"{name}-in"')
    return source.replace('"seen"', f'"{name}-out"')


async def cancel(server: Server, name: str) -> None:
    cancelled = await run_cli(server.address, "topology", "cancel", name, "--yes")
    assert cancelled.code == 0, cancelled.err


async def test_two_topologies_run_side_by_side_and_one_ends_alone(server: Server) -> None:
    await submit(server)
    await submit_source(server, "other", varied("other"))
    await speak(server, "a", "b")
    await speak(server, "c", stream="other-in")
    assert await read(server, "seen", Seen, 2) == [Seen("a", 1), Seen("b", 1)]
    assert await read(server, "other-out", Seen, 1) == [Seen("c", 1)]
    await cancel(server, "other")
    await speak(server, "a", first=2)
    assert (await read(server, "seen", Seen, 3))[-1] == Seen("a", 2)


async def test_a_drained_topology_ends_with_everything_processed(server: Server) -> None:
    await submit(server)
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        await injector.send_many([Word(f"w{n % 7}") for n in range(500)], range(500), positions=range(500))
        await injector.finish()
    drained = await run_cli(server.address, "topology", "drain", "words", "--yes", *WAIT)
    assert drained.code == 0, drained.err
    assert "is drained" in drained.out
    assert len(await read(server, "seen", Seen, 500)) == 500
    with pytest.raises(mw.MillwheelError, match="drain"):
        await speak(server, "late", process="q")


async def test_a_cancelled_topology_can_be_submitted_again_empty(server: Server) -> None:
    await submit(server)
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        await injector.send(Word("one"), timestamp=1_000, position=0)
        await injector.finish()
    assert await read(server, "seen", Seen, 1) == [Seen("one", 1)]
    await cancel(server, "words")
    await submit(server)
    shown = await run_cli(server.address, "watermark", "show", "words")
    assert "+inf" not in shown.out, "the end of the old stream is not the end of the new one"
    # The same process name, position and time: they are another stream's.
    await speak(server, "one", "two")
    assert await read(server, "seen", Seen, 2) == [Seen("one", 1), Seen("two", 1)]


async def test_two_topologies_with_equal_module_names_run_side_by_side(server: Server) -> None:
    await submit(server)
    place = server.db.parent / "elsewhere"
    place.mkdir()
    (place / "words.py").write_text(varied("clash").replace("times += 1", "times += 10"))
    submitted = await run_cli(server.address, "topology", "submit", f"{place / 'words.py'}:words")
    assert submitted.code == 0, submitted.err
    await speak(server, "a")
    await speak(server, "a", stream="clash-in")
    assert await read(server, "seen", Seen, 1) == [Seen("a", 1)]
    assert await read(server, "clash-out", Seen, 1) == [Seen("a", 10)]
    await server.kill()
    await server.start()
    await speak(server, "a", first=1)
    await speak(server, "a", first=1, stream="clash-in")
    assert (await read(server, "seen", Seen, 2))[-1] == Seen("a", 2)
    assert (await read(server, "clash-out", Seen, 2))[-1] == Seen("a", 20)


EXPECTING = (
    SOURCE.replace('words.source("spoken", Word)', 'words.source("spoken", Word, injectors=("p", "q"))')
    .replace('ctx.produce("seen", Seen(text, state.times))', "ctx.set_timer(record.timestamp, text)")
    .replace(
        '"""Do nothing: tests only inspect the timers."""',
        'ctx.produce("seen", Seen(timer.tag, ctx.state.times))',
    )
)


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_stream_holds_until_every_expected_injector_has_come(server: Server) -> None:
    await submit_source(server, "words", EXPECTING)
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as first:
        await first.send(Word("early"), timestamp=1_000, position=0)
        await first.advance(5_000)
        await first.flush()
        await asyncio.sleep(0.5)
        answer = await run_cli(server.address, "watermark", "explain", "words/count")
        assert "injector process 'q' is expected, and has never announced itself" in answer.out
        async with Subscription("seen", cursor="c", record_type=Seen, address=server.address) as subscription:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(subscription), 0.5)
        with pytest.raises(mw.MillwheelError, match=r"does not expect an injector process 'r'"):
            await Injector("spoken", address=server.address, process="r", topology=program.words).open()
        async with Injector("spoken", address=server.address, process="q", topology=program.words) as second:
            await second.advance(5_000)
            assert await read(server, "seen", Seen, 1) == [Seen("early", 1)]


ASYNC = (
    SOURCE.replace("import msgspec\n", "import asyncio\n\nimport msgspec\n")
    .replace("    def process_record", "    async def process_record")
    .replace("state, text = ctx.state,", "await all_at_once()\n        state, text = ctx.state,")
    + """

waiting = 0
came = asyncio.Event()


async def all_at_once():
    global waiting
    waiting += 1
    if waiting == 20:
        came.set()
    await came.wait()
"""
)
"""No hook ends before those of all 20 keys have begun."""


@pytest.mark.guarantee("G5", section="4.1")
async def test_asynchronous_hooks_overlap_and_keep_each_keys_order(server: Server) -> None:
    await submit_source(server, "words", ASYNC)
    await speak(server, *[f"w{n % 20}" for n in range(60)])
    seen = await read(server, "seen", Seen, 60)
    for text in {one.text for one in seen}:
        assert [one.times for one in seen if one.text == text] == [1, 2, 3]


THROTTLED = SOURCE.replace('words.source("spoken", Word)', 'words.source("spoken", Word, allowed_skew=mw.seconds(10))')


@pytest.mark.guarantee("G13", section="8.4")
async def test_only_an_injector_ahead_of_the_low_watermark_waits(server: Server) -> None:
    await submit_source(server, "words", THROTTLED)
    second = 1_000_000
    async with (
        Injector("spoken", address=server.address, process="slow", topology=program.words) as slow,
        Injector("spoken", address=server.address, process="fast", topology=program.words) as fast,
    ):
        await slow.send(Word("a"), timestamp=1 * second, position=0)
        await slow.advance(1 * second)
        await fast.send(Word("b"), timestamp=2 * second, position=0)
        await fast.advance(90 * second)
        ahead = asyncio.create_task(fast.send(Word("c"), timestamp=95 * second, position=1))
        await asyncio.sleep(0.7)
        assert not ahead.done(), "95 s is more than 10 s ahead of 1 s"
        await slow.send(Word("d"), timestamp=89 * second, position=1)
        await slow.advance(89 * second)
        await asyncio.wait_for(ahead, patience(10))
