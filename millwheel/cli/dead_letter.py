"""``millwheel dead-letter``: list, show, replay and discard."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.completing import complete_topologies
from millwheel.cli.dead_letter_rows import (
    counts_text,
    discard_text,
    listed_letter,
    plain_discard,
    plain_replay,
    print_letter,
    replay_text,
    shown_letter,
    table_row,
)
from millwheel.cli.failing import ExitCode
from millwheel.cli.letter_ids import letter_id_text, parse_letter_ids
from millwheel.cli.letters_again import again_text, failed_again
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output
from millwheel.cli.output import OutputFormat, print_plain, print_table
from millwheel.cli.progress import ReportProgress
from millwheel.cli.times import ago_or_time
from millwheel.client.control import ControlClient
from millwheel.client.dead_letters import (
    DeadLetters,
    DiscardReport,
    Letter,
    LetterFilter,
    LetterPage,
    LetterState,
    LetterStates,
    ReplayReport,
)
from millwheel.client.shown_values import show_value
from millwheel.model.wording import counted
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["app"]

Answer = TypeVar("Answer")

app = typer.Typer(
    help="Dead letters: records and timers that a topology gave up. List, show, replay and discard them.",
    no_args_is_help=True,
    add_completion=False,
)

_Topology = Annotated[str, typer.Argument(help="The topology's name.", autocompletion=complete_topologies)]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The letters, as `list` shows them: 17@23.")]
_All = Annotated[bool, typer.Option("--all", help="All letters that are neither replayed nor discarded.")]
_Computation = Annotated[str, typer.Option(help="Only letters of this computation.")]
_Key = Annotated[str | None, typer.Option(help="Only letters of this key.")]
_Since = Annotated[
    str,
    typer.Option(
        metavar="TIME|DURATION",
        help="Only letters of failures since then: 2026-01-31T12:00:00Z, or 10m, 2h for so long ago.",
    ),
]
_Error = Annotated[str, typer.Option(metavar="TEXT", help="Only letters with this text in the error, in any case.")]
_Timeout = Annotated[
    float,
    typer.Option(min=0.001, help="Seconds to wait for a cluster that cannot be reached, or for the next ACK."),
]

_STATES = {state.word: state for state in LetterState}


def _state(text: str) -> frozenset[LetterState]:
    if text == "all":
        return frozenset(LetterState)
    if text not in _STATES:
        raise typer.BadParameter(f"{text!r} is none of all, {', '.join(_STATES)}", param_hint="--state")
    return frozenset({_STATES[text]})


def _wanted(
    ids: frozenset[int], computation: str, key: str | None, since: str, error: str, *, every: bool = True
) -> LetterFilter:
    """The letters that the options mean. ``every``: they may mean all letters."""
    if not (every or ids or computation or key is not None or since or error):
        raise typer.BadParameter("which letters? name their IDs, an option such as --computation, or --all")
    first = ago_or_time(since, "--since") if since else None
    return LetterFilter(ids or None, computation, key, first, error)


def _note_missing(ids: frozenset[int], found: list[int]) -> None:
    """Say which of the named letters were not among those to be handled."""
    if missing := sorted(ids.difference(found)):
        named = ", ".join(map(str, missing))
        print(f"not meant: {named}: replayed or discarded before, chosen by no option, or not kept", file=sys.stderr)


def _run(
    topology: str, address: str, timeout: float, work: Callable[[DeadLetters], Awaitable[Answer]], log: int = 0
) -> Answer:
    """Do work on the letters of the present log, which must have the number ``log`` unless that is 0."""

    async def run() -> Answer:
        async with DeadLetters(topology, address, patience=timeout, log=log) as letters:
            return await work(letters)

    return asyncio.run(run())


@app.command("list")
def list_letters(
    topology: _Topology,
    computation: _Computation = "",
    key: _Key = None,
    since: _Since = "",
    error: _Error = "",
    state: Annotated[
        str,
        typer.Option(help=f"Only letters in this state: {', '.join(_STATES)}, or all. Default: those to be handled."),
    ] = "",
    begin: Annotated[str, typer.Option("--from", metavar="ID", help="Begin at this letter.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The most letters.")] = 100,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: _Timeout = 10.0,
) -> None:
    """List dead letters, the oldest first.

    Example: millwheel dead-letter list shop --computation bill --error "no price"
    """
    wanted = _wanted(frozenset(), computation, key, since, error)
    start = parse_letter_ids([begin] if begin else [], "--from", bound=False)
    if state:
        wanted = LetterFilter(None, wanted.computation, wanted.key, wanted.since, wanted.error, _state(state))

    async def work(letters: DeadLetters) -> tuple[LetterPage, LetterStates, int]:
        page = await letters.page(wanted, min(start.offsets, default=0), limit)
        return page, await letters.states(), letters.log

    page, states, log = _run(topology, address, timeout, work, start.log)
    rows = [listed_letter(one, log) for one in page.letters]
    if output is OutputFormat.TABLE:
        columns = ["id", "failed at", "computation", "key", "state", "tries", "error"]
        print_table(columns, [table_row(row) for row in rows], f"topology {topology} has no such dead letters")
        print(counts_text(states), file=sys.stderr)
    else:
        print_plain(rows, output)
    if page.following is not None:
        print(f"there are more: --from {letter_id_text(page.following, log)}", file=sys.stderr)


@app.command()
def show(
    topology: _Topology,
    letter: Annotated[str, typer.Argument(metavar="ID", help="The letter, as `list` shows it.")],
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: _Timeout = 10.0,
) -> None:
    """Show a dead letter: its record, its key, the error with its traceback, and the code that failed.

    Example: millwheel dead-letter show shop 17@23
    """
    wanted = parse_letter_ids([letter], "ID", bound=False)

    async def work(letters: DeadLetters) -> dict[str, Any]:
        found = await letters.get(min(wanted.offsets))
        return shown_letter(found, letters.log, show_value(found.content.value, await _format(found, address)))

    shown = _run(topology, address, timeout, work, wanted.log)
    if output is OutputFormat.TABLE:
        print_letter(shown)
    else:
        print_plain(shown, output)


async def _format(letter: Letter, address: str) -> specs.ValueFormat.ValueType:
    """The format of the record's stream. Unspecified if the stream does not exist any more."""
    if not letter.stream:
        return specs.VALUE_FORMAT_UNSPECIFIED
    async with ControlClient(address) as client:
        try:
            return (await client.routing(letter.stream)).stream.format
        except RequestError as error:
            if error.code is not FailureCode.NOT_FOUND:
                raise
            return specs.VALUE_FORMAT_UNSPECIFIED


async def _again_text(topology: str, count: int, address: str) -> str:
    async with ControlClient(address) as client:
        return again_text(topology, count, (await client.get_topology(topology)).topology.version)


@app.command()
def replay(
    topology: _Topology,
    ids: _Ids = None,
    every: _All = False,
    computation: _Computation = "",
    key: _Key = None,
    since: _Since = "",
    error: _Error = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: _Timeout = 60.0,
) -> None:
    """Send the records of dead letters again, each to the computation that failed. Each takes effect once.

    Mend the code first, by `millwheel topology update`. A replay that was interrupted goes on when it is called again.
    A record that fails again becomes another letter: the command says how many do. Exit code 1: all of them.
    A record behind the low watermark is late.

    Example: millwheel dead-letter replay shop --computation bill
    """
    named = parse_letter_ids(ids or (), "ID", bound=True)
    wanted = _wanted(named.offsets, computation, key, since, error, every=every)
    progress = ReportProgress[ReplayReport](sys.stderr, replay_text)

    async def work(letters: DeadLetters) -> tuple[ReplayReport, list[int], str]:
        done = await letters.replay(wanted, progress.show)
        found = await failed_again(letters, done.replayed)
        return done, found, await _again_text(topology, len(found), address) if found else ""

    report, again, note = _run(topology, address, timeout, work, named.log)
    progress.end()
    if output is OutputFormat.TABLE:
        print(replay_text(report))
    else:
        print_plain(plain_replay(report, again), output)
    if note:
        print(note, file=sys.stderr)
    refused = (one.offset for one in report.refused)
    left = report.left(named.offsets)
    _note_missing(named.offsets, [*report.replayed, *report.elsewhere, *report.unconfirmed, *refused, *left])
    for reason in dict.fromkeys(one.reason for one in report.refused):
        ids_text = ", ".join(str(one.offset) for one in report.refused if one.reason == reason)
        print(f"not replayed: {ids_text}: {reason}", file=sys.stderr)
    if report.unconfirmed:
        print(
            f"{counted(len(report.unconfirmed), 'letter')} from {report.unconfirmed[0]} on: no ACK within "
            f"{timeout:g} s: {report.why_unconfirmed}; call it again to go on",
            file=sys.stderr,
        )
    if report.refused or report.unconfirmed or (again and len(again) == len(report.replayed)):
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def discard(
    topology: _Topology,
    ids: _Ids = None,
    every: _All = False,
    computation: _Computation = "",
    key: _Key = None,
    since: _Since = "",
    error: _Error = "",
    in_replay: Annotated[
        bool,
        typer.Option(
            "--in-replay",
            help="Also letters whose replay has begun. Their records may have taken effect, or still do.",
        ),
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: _Timeout = 60.0,
) -> None:
    """Give dead letters up for good. Their log still keeps them for a week.

    Example: millwheel dead-letter discard shop 17@23 18@23 --yes
    """
    named = parse_letter_ids(ids or (), "ID", bound=True)
    wanted = _wanted(named.offsets, computation, key, since, error, every=every)
    if not yes:
        which = f"{counted(len(ids), 'dead letter')}" if ids else "all such dead letters"
        confirm(f"Discard {which} of topology {topology} for good?")
    progress = ReportProgress[DiscardReport](sys.stderr, discard_text)
    report = _run(
        topology,
        address,
        timeout,
        lambda letters: letters.discard(wanted, also_in_replay=in_replay, progress=progress.show),
        named.log,
    )
    progress.end()
    if output is OutputFormat.TABLE:
        print(discard_text(report))
    else:
        print_plain(plain_discard(report), output)
    _note_missing(named.offsets, [*report.discarded, *report.in_replay, *report.elsewhere])
    if report.in_replay:
        print(
            f"not discarded: {', '.join(map(str, report.in_replay))}: their replay has begun, so their records may "
            "have taken effect; call `replay` again to complete it, or pass --in-replay",
            file=sys.stderr,
        )
        raise typer.Exit(ExitCode.FAILED)
