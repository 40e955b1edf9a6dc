"""The principal of the present call: what a handler calls and starts sees it, and other calls do not."""

from __future__ import annotations

import asyncio

from millwheel.rpc.principal import Principal, acting_as, current_principal, set_principal

ADA = Principal("certificate:ada", ("unit:ops",))


async def test_what_a_call_starts_sees_its_caller() -> None:
    async def call(name: str) -> str:
        set_principal(Principal(name))
        await asyncio.sleep(0)
        return await asyncio.create_task(started())

    async def started() -> str:
        return current_principal().name

    calls = [asyncio.create_task(call(name)) for name in ("certificate:a", "token:b")]
    assert await asyncio.gather(*calls) == ["certificate:a", "token:b"]
    assert current_principal().name == "local"


def test_a_block_names_its_caller_and_then_forgets_it() -> None:
    with acting_as(ADA):
        assert current_principal().names == ("certificate:ada", "unit:ops")
    assert current_principal().name == "local"
