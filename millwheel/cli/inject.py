"""``millwheel inject file``; ``millwheel inject http`` is in ``inject_http.py``."""

from __future__ import annotations

import asyncio
import glob
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from millwheel.cli.inject_http import inject_http
from millwheel.cli.metrics_page import client_metrics
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Stream
from millwheel.cli.output import OutputFormat, print_plain
from millwheel.cli.progress import InjectionProgress, known_or_late, showing
from millwheel.cli.times import timestamp_field
from millwheel.client.control import ControlClient
from millwheel.client.holds.unacked import unacked_explainer
from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.injector.likelihood import ANY_TIMESTAMP_VARIABLE
from millwheel.connectors.files.parsing import ColumnType, FileFormat, TimeUnit
from millwheel.injectors.errors import RefusedLineError, SourceError
from millwheel.injectors.files import FileInjector, FileSettings, check_files
from millwheel.model.time import seconds
from millwheel.model.wording import counted
from millwheel.rpc.failures import RequestError

__all__ = ["app"]

_NO_TIMES: Final = (
    "without --timestamp, each record has the time at which its file was created: name the field with the record's own "
    "time by --timestamp FIELD --unit UNIT, if it has one"
)

_NOT_IN_PLACE: Final = (
    "Do not fix them in the file that was read: a line is known by its place there. The corrected line may count as "
    "known, and lines that move count as new: records are lost, or come twice"
)

_HOW_TO_GO_ON: Final = (
    "this run injected no line after it in its file: unless an earlier run has skipped it, correct it there, leave the "
    "lines before it as they are, and run again; or give --skipped-to FILE, which writes such lines to a file and goes "
    "on, or --skip-bad, which only counts them"
)

app = typer.Typer(help="Feed a stream from outside.", no_args_is_help=True, add_completion=False)


app.command("http")(inject_http)


@app.callback()
def _sources() -> None:
    """Feed a stream from outside."""


@app.command("file")
def inject_file(
    stream: Stream,
    root: Annotated[Path, typer.Argument(help="A file, or the directory that they are in.", exists=True)],
    pattern: Annotated[str, typer.Option(help="Which files below the directory, as *.jsonl or **/*.log.")] = "*",
    form: Annotated[FileFormat, typer.Option("--format", help="What a line is.")] = FileFormat.JSONL,
    timestamp: Annotated[str, typer.Option(help="The field with a record's time; default: the file's creation.")] = "",
    unit: Annotated[
        TimeUnit | None,
        typer.Option(help="How that time is written: a number of units since 1970, or ISO 8601 with an offset."),
    ] = None,
    id_field: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="FIELD",
            help="The field with a record's id: the same id again, from any file, has no second effect while the stream"
            " keeps ids (id_slack). Default: a record is known by its file and its place there.",
        ),
    ] = "",
    any_timestamp: Annotated[
        bool,
        typer.Option(
            "--any-timestamp",
            envvar=ANY_TIMESTAMP_VARIABLE,
            help="Take times before 1980 or more than a year ahead, too.",
        ),
    ] = False,
    disorder: Annotated[
        float, typer.Option(min=0, help="Seconds that a record may be older than one before it in its file.")
    ] = 0.0,
    tail: Annotated[bool, typer.Option("--tail", help="Go on with what is appended, and with new files.")] = False,
    finish: Annotated[
        bool,
        typer.Option(
            "--finish",
            help="At the end, finish the process for good. Once all processes of the stream have finished, the low"
            " watermark passes everything.",
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Remembers how far all is acknowledged, so that a restart reads less.")
    ] = None,
    process: Annotated[
        str, typer.Option(help="This process's name, by default files-HOST; a second one of a name ends the first.")
    ] = "",
    column: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TYPE", help="A CSV column that is int or float. May be repeated.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count lines that are no records of the stream, and go on.")
    ] = False,
    skipped_to: Annotated[
        Path | None,
        typer.Option(
            "--skipped-to", help="As --skip-bad, and write those lines to this new file, to be fixed and injected."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Serve Prometheus metrics on this port of 127.0.0.1. Default: none."),
    ] = None,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Inject the records of files: each line has one.

    A file that is read again has no second effect, if it only grew.
    """
    directory, names = (root.parent, glob.escape(root.name)) if root.is_file() else (root, pattern)
    if tail and finish:
        raise typer.BadParameter("a tail has no end at which to finish", param_hint="--finish")
    settings = FileSettings(
        directory,
        names,
        form,
        timestamp_field(timestamp, unit),
        id_field,
        seconds(disorder),
        tail=tail,
        finish=finish,
        any_timestamp=any_timestamp,
        checkpoint=checkpoint,
        skip_bad=skip_bad,
        skipped_to=skipped_to,
        types=dict(_column_type(one) for one in column or ()),
    )
    if not tail:
        check_files(settings)
    if settings.timestamp is None:
        typer.echo(_NO_TIMES, err=True)
    name = process or f"files-{socket.gethostname()}"
    try:
        done, late = asyncio.run(_inject(address, stream, name, settings, metrics_port))
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    except RefusedLineError as error:
        raise RefusedLineError(f"{error}; {_HOW_TO_GO_ON}") from None
    _print_done(stream, name, done, late, output)
    if late and done.found_disorder > settings.disorder:
        typer.echo(_how_to_order(done.found_disorder), err=True)
    if done.skipped:
        typer.echo(_how_to_fix(stream, skipped_to), err=True)
    if done.skipped and not done.records:
        raise SourceError("no line is a record of the stream: see the first reasons above")
    if not finish:
        text = "is idle: give --finish once nothing more will come, so that the low watermark passes everything"
        typer.echo(f"injector process {name} {text}", err=True)
        return
    typer.echo(f"injector process {name} has finished", err=True)
    for other, state in asyncio.run(_unfinished(address, stream)):
        typer.echo(
            f"the last windows wait for injector process {other}, which is {state}: once it sends nothing more, end it "
            f"by `millwheel injector finish {stream} {other}`",
            err=True,
        )


def _print_done(stream: str, process: str, done: FileInjector, late: int, output: OutputFormat) -> None:
    counts = {"records": done.records, "late": late, "skipped": done.skipped}
    if output is not OutputFormat.TABLE:
        print_plain({"stream": stream, "process": process, **counts}, output)
        return
    skipped = f", {counted(done.skipped, 'line')} skipped" if done.skipped else ""
    are = "is" if done.records == 1 else "are"
    typer.echo(f"{counted(done.records, 'record')} {are} in {stream}, {known_or_late(late)}{skipped}")


async def _unfinished(address: str, stream: str) -> list[tuple[str, str]]:
    """Return the stream's unfinished processes with their states. Empty if the cluster does not answer."""
    try:
        async with ControlClient(address) as client:
            known = await client.list_injectors(stream)
    except RequestError:
        return []
    return [(one.process, "idle" if one.idle else "active") for one in known if not one.finished and not one.retired]


def _how_to_order(disorder: int) -> str:
    """Return what keeps records in time that are older than one before them."""
    most = -(-disorder // seconds(1))
    return (
        f"lines are up to {most:,} s older than a line before them in their file, so some may be late, and each "
        f"computation's late policy says what has become of them: with --disorder {most} the watermark waits for them"
    )


def _how_to_fix(stream: str, skipped_to: Path | None) -> str:
    """Return instructions for injecting the skipped lines."""
    if skipped_to is None:
        return (
            "to bring skipped lines in, fix copies of them in a file of their own, and inject that; --skipped-to FILE "
            f"makes one. {_NOT_IN_PLACE}"
        )
    return (
        f"the skipped lines are in {skipped_to}: fix them there, then inject them by `millwheel inject file {stream} "
        f"{skipped_to}` with the same options. Those behind the low watermark of the stream are late then: each "
        f"computation's late policy says what becomes of them. {_NOT_IN_PLACE}"
    )


async def _inject(
    address: str, stream: str, process: str, settings: FileSettings, metrics_port: int | None
) -> tuple[FileInjector, int]:
    """Inject the files. Returns the finished file injector and the number of late records."""
    injector = Injector(
        stream,
        address=address,
        process=process,
        # ``FileInjector`` checks each line's timestamp when it reads the line. The injector repeats the check, and
        # checks the watermark, too.
        settings=InjectorSettings(
            check_at_worker=True, any_timestamp=settings.any_timestamp, explain=unacked_explainer(address)
        ),
    )
    files = FileInjector(injector, settings)

    def read() -> InjectionProgress:
        return InjectionProgress(files.records, files.skipped, injector.late, injector.unacked)

    # SIGTERM from a service manager acts like Ctrl-C: if all records are ACKed, the injector process becomes idle.
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with client_metrics(metrics_port):
        async with showing(read, sys.stderr), injector:
            await files.run()
    return files, injector.late


def _column_type(option: str) -> tuple[str, ColumnType]:
    name, _, kind = option.partition("=")
    if not name or kind not in set(ColumnType):
        raise typer.BadParameter(
            f"{option!r} is not NAME=TYPE with a type of {', '.join(ColumnType)}", param_hint="--column"
        )
    return name, ColumnType(kind)
