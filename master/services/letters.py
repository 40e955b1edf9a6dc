"""LetterHandlingService: the dead letters of a topology. The owner of their log has them, and the master asks.

The master acts as a process of the cluster, after it has checked the caller's roles for the topology.

Invariant: letters are changed only in the log that the caller has seen. A topology that is cancelled and submitted
again has another log, whose letters have the same ids. So each request to change letters names its log, and so does a
page token. Who could break it: a plan that was made before that.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import grpc
import msgspec

from millwheel.client.dead_letters import DeadLetters, Letter, LetterFilter, LetterState, LetterStates, ReplayReport
from millwheel.client.dead_letters.letters import UNHANDLED
from millwheel.client.shown_values import show_value
from millwheel.master.letter_effects import discard_effects, grouped_refusals, replay_effects
from millwheel.master.replica import MasterReplica, steady_clock
from millwheel.master.services.pages import page_rows
from millwheel.master.topology_plans import refuse_unknown_topology
from millwheel.model.catalog import Catalog
from millwheel.model.stream_names import dead_letter_stream
from millwheel.model.time import seconds
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.page_tokens import foreign_page_token
from millwheel.rpc.v1 import letter_pb2 as wire
from millwheel.rpc.v1 import letter_pb2_grpc
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["REPLAY_SECONDS", "SENDING_SECONDS", "LetterHandlingServicer"]

_OWNER_SECONDS: Final = 4.0
"""How long the log's owner, or the next ACK of a replay, is waited for. The caller waits for eight seconds."""
SENDING_SECONDS: Final = 3.0
"""How long one call sends records of letters."""
REPLAY_SECONDS: Final = 4.5
"""How long a call replays letters with everything: ACKs are noted, too. The console's page waits for five seconds."""
_LOOKED_AT: Final = 5_000
_LOOK: Final = seconds(3)
"""The most letters that one call looks at, and how long."""
_MAX_HANDLED: Final = 1_000
_MAX_CHARACTERS: Final = 20_000
"""A longer value or traceback is cut."""
_TOKEN: Final = re.compile(r"(\d{1,19})@(\d{1,19})", re.ASCII)
"""A page token: the offset, and the number of the log."""
_STATES: Final = {state.word: frozenset({state}) for state in LetterState}
_SELECTED: Final = {"": UNHANDLED, "all": frozenset(LetterState), **_STATES}

Context = grpc.aio.ServicerContext[Any, Any]


class LetterHandlingServicer(letter_pb2_grpc.LetterHandlingServiceServicer):
    """Lists, shows, replays and discards letters by the client that programs use, too."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def ListLetters(self, request: wire.ListLettersRequest, context: Context) -> wire.ListLettersResponse:
        """Return a page of letters, and how many the log keeps."""
        return await answering(context, lambda: self._list(request))

    async def GetLetter(self, request: wire.GetLetterRequest, context: Context) -> wire.GetLetterResponse:
        """Return one letter with everything."""
        return await answering(context, lambda: self._get(request))

    async def PlanLetterHandling(
        self, request: wire.PlanLetterHandlingRequest, context: Context
    ) -> wire.PlanLetterHandlingResponse:
        """Return what a replay or a discarding would do."""
        return await answering(context, lambda: self._plan(request))

    async def ReplayLetters(self, request: wire.ReplayLettersRequest, context: Context) -> wire.ReplayLettersResponse:
        """Send records again."""
        return await answering(context, lambda: self._replay(request))

    async def DiscardLetters(
        self, request: wire.DiscardLettersRequest, context: Context
    ) -> wire.DiscardLettersResponse:
        """Give letters up."""
        return await answering(context, lambda: self._discard(request))

    async def _list(self, request: wire.ListLettersRequest) -> wire.ListLettersResponse:
        wanted, (first, log) = _filter(request.letters), _begin(request.page_token)
        if not _has_log(await self._known(request.topology), request.topology):
            return wire.ListLettersResponse(counts=wire.LetterCounts())
        async with self._letters(request.topology, log or request.letters.log) as letters:
            found, following = await _look(letters, wanted, first, page_rows(request.page_size))
            counts = _counts(await letters.states())
        token = "" if following is None else f"{following}@{letters.log}"
        return wire.ListLettersResponse(
            letters=map(_listed, found), next_page_token=token, counts=counts, log=letters.log
        )

    async def _get(self, request: wire.GetLetterRequest) -> wire.GetLetterResponse:
        known = await self._known(request.topology)
        async with self._letters(request.topology) as letters:
            letter = await letters.get(request.id)
            refusals = await letters.refusals([letter])
        content, stream = letter.content, known.stream(letter.stream) if letter.stream else None
        form = specs.VALUE_FORMAT_UNSPECIFIED if stream is None else stream.format
        text = "" if letter.is_timer else _text(content.value, form)
        return wire.GetLetterResponse(
            letter=_listed(letter),
            value_text=text[:_MAX_CHARACTERS],
            cut=len(text) > _MAX_CHARACTERS,
            delivery_key=content.delivery_key,
            code_digest=content.code,
            present_code_digest=_present_code(known, request.topology),
            traceback=content.traceback[-_MAX_CHARACTERS:],
            refusal=refusals.get(letter.offset, ""),
            log=letters.log,
        )

    async def _plan(self, request: wire.PlanLetterHandlingRequest) -> wire.PlanLetterHandlingResponse:
        known = await self._known(request.topology)
        wanted = _filter(request.letters)
        if not _has_log(known, request.topology):
            return wire.PlanLetterHandlingResponse()
        async with self._letters(request.topology, request.letters.log) as letters:
            found, following = await _look(letters, wanted, 0, _MAX_HANDLED)
            left = _not_discarded(found, request.also_in_replay) if request.discard else await letters.refusals(found)
        taken = [one for one in found if one.offset not in left and one.state in UNHANDLED]
        left |= {one.offset: "it was replayed or discarded before" for one in found if one.state not in UNHANDLED}
        plan = wire.PlanLetterHandlingResponse(refused=grouped_refusals(left), more=following is not None)
        ids = [one.offset for one in taken]
        if request.discard:
            plan.effects.extend(discard_effects(taken, request.also_in_replay))
            if ids:
                plan.discard.topology, plan.discard.also_in_replay = request.topology, request.also_in_replay
                plan.discard.log = letters.log
                plan.discard.ids.extend(ids)
        else:
            plan.effects.extend(replay_effects(taken, _present_code(known, request.topology)))
            if ids:
                plan.replay.topology, plan.replay.log = request.topology, letters.log
                plan.replay.ids.extend(ids)
        return plan

    async def _replay(self, request: wire.ReplayLettersRequest) -> wire.ReplayLettersResponse:
        offsets = _handled(request.ids, request.log)
        await self._known(request.topology)
        report = await self._replay_in_time(request.topology, request.log, offsets)
        refused = grouped_refusals({one.offset: one.reason for one in report.refused})
        left = report.left(offsets)
        done = {*report.replayed, *report.unconfirmed, *(one.offset for one in report.refused), *left}
        return wire.ReplayLettersResponse(
            replayed=report.replayed,
            elsewhere=sorted(offsets - done),
            refused=refused,
            unconfirmed=report.unconfirmed,
            why_unconfirmed=report.why_unconfirmed,
            left=left,
        )

    async def _replay_in_time(self, topology: str, log: int, offsets: frozenset[int]) -> ReplayReport:
        """Replay as many letters as there is time for. A replay may end at any point, and another one goes on."""
        report = ReplayReport()

        def note(made: ReplayReport) -> None:
            nonlocal report
            report = made

        limit = asyncio.timeout(REPLAY_SECONDS)
        try:
            async with limit, self._letters(topology, log) as letters:
                report = await letters.replay(LetterFilter(offsets), note, within=SENDING_SECONDS)
        except TimeoutError:
            if not limit.expired():
                raise
            if not report.why_unconfirmed:
                report.why_unconfirmed = f"what is left had no answer within {REPLAY_SECONDS:g} s"
        return report

    async def _discard(self, request: wire.DiscardLettersRequest) -> wire.DiscardLettersResponse:
        offsets = _handled(request.ids, request.log)
        await self._known(request.topology)
        async with self._letters(request.topology, request.log) as letters:
            report = await letters.discard(LetterFilter(offsets), also_in_replay=request.also_in_replay)
        return wire.DiscardLettersResponse(
            discarded=report.discarded,
            in_replay=report.in_replay,
            elsewhere=sorted(offsets - {*report.discarded, *report.in_replay}),
        )

    async def _known(self, topology: str) -> Catalog:
        known = (await self._replica.term()).catalog
        if topology not in known.topologies:
            refuse_unknown_topology(topology, known)
        return known

    def _letters(self, topology: str, log: int = 0) -> DeadLetters:
        return DeadLetters(topology, self._replica.address, patience=_OWNER_SECONDS, log=log)


def _has_log(known: Catalog, topology: str) -> bool:
    return dead_letter_stream(topology) in known.logs


def _present_code(known: Catalog, topology: str) -> str:
    return known.topologies[topology].spec.code.digest


def _filter(selection: wire.LetterSelection) -> LetterFilter:
    if selection.state not in _SELECTED:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"{selection.state!r} is no state of a letter",
            f"one of {', '.join(state for state in _SELECTED if state)}, or none for letters to be handled",
            reason="LETTER_STATE_UNKNOWN",
        )
    return LetterFilter(
        offsets=frozenset(selection.ids) if selection.ids else None,
        computation=selection.computation,
        key=selection.key if selection.HasField("key") else None,
        error=selection.error,
        states=_SELECTED[selection.state],
    )


def _begin(token: str) -> tuple[int, int]:
    """Return where a page begins, and the number of its log. 0: any log."""
    if not token:
        return 0, 0
    if not (named := _TOKEN.fullmatch(token)):
        raise foreign_page_token()
    return int(named[1]), int(named[2])


def _handled(ids: Any, log: int) -> frozenset[int]:
    if not log:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            "the request does not say of which log its letters are",
            "name the log as ListLetters and PlanLetterHandling do",
            reason="LETTERS_LOG_NOT_NAMED",
        )
    if not 0 < len(ids) <= _MAX_HANDLED:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"the request names {len(ids):,} letters",
            f"name at least one, and at most {_MAX_HANDLED:,}; PlanLetterHandling finds those of a selection",
            reason="LETTERS_NOT_NAMED",
        )
    return frozenset(ids)


async def _look(letters: DeadLetters, wanted: LetterFilter, first: int, limit: int) -> tuple[list[Letter], int | None]:
    """Return the first letters that are meant, and where to go on. None: there are no more.

    Without their values and tracebacks: a thousand letters could have a gigabyte.
    """
    found: list[Letter] = []
    until = steady_clock() + _LOOK
    every = LetterFilter(wanted.offsets, states=frozenset(LetterState))
    async with aclosing(letters.letters(every, first)) as all_letters:
        looked = 0
        async for letter in all_letters:
            if len(found) >= limit or looked >= _LOOKED_AT or steady_clock() > until:
                return found, letter.offset
            looked += 1
            if wanted.takes(letter):
                found.append(replace(letter, content=msgspec.structs.replace(letter.content, value=b"", traceback="")))
    return found, None


def _not_discarded(letters: list[Letter], also_in_replay: bool) -> dict[int, str]:
    """Return the letters in replay, which a discarding leaves alone."""
    if also_in_replay:
        return {}
    reason = (
        "its replay has begun, so its record may have taken effect: complete the replay, or discard it all the same"
    )
    return {one.offset: reason for one in letters if one.state is LetterState.IN_REPLAY}


def _counts(states: LetterStates) -> wire.LetterCounts:
    return wire.LetterCounts(
        waiting=states.count(LetterState.WAITING),
        in_replay=states.count(LetterState.IN_REPLAY),
        replayed=states.count(LetterState.REPLAYED),
        discarded=states.count(LetterState.DISCARDED),
    )


def _listed(letter: Letter) -> wire.ListedLetter:
    content = letter.content
    return wire.ListedLetter(
        id=letter.offset,
        state=letter.state.word,
        computation=content.computation,
        key=content.key,
        stream=letter.stream,
        timer_tag=content.timer_tag,
        timestamp_us=content.timestamp,
        failed_at_us=letter.failed_at,
        attempts=content.attempts,
        error=content.error,
        replay_of=content.replay_of,
    )


def _text(value: bytes, form: specs.ValueFormat.ValueType) -> str:
    shown = show_value(value, form)
    return shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
