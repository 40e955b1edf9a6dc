"""The dashboard of the store, as MillWheel sees it: commits, other requests, and the authority's journal."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import Board, board, distribution, graph, quantile, rate, row

__all__ = ["store"]

_COMMITS: Final = "millwheel_append_seconds"
_REQUESTS: Final = "millwheel_store_request_seconds"
_AUTHORITY: Final = "millwheel_authority_append_seconds"


def store() -> Board:
    """Is the store slow, or down?"""
    made = board("store", "store", "Is the store slow, or down? Cassandra's own metrics say why.")
    return _authority(_requests(_commits(made)))


def _commits(made: Board) -> Board:
    return (
        made.with_row(row("Commits"))
        .with_panel(distribution("Time of commits", _COMMITS, "", "How many commits took how long."))
        .with_panel(
            graph(
                "Time of commits",
                {"p50": quantile(0.5, _COMMITS), "p99": quantile(0.99, _COMMITS)},
                "From the sending of a commit to the store until it is known to be there.",
                "s",
            )
        )
        .with_panel(
            graph(
                "Time of commits by worker, p99",
                {"{{instance}}": quantile(0.99, _COMMITS, "instance")},
                "One worker alone: its machine or its link is slow, and not the store.",
                "s",
            )
        )
        .with_panel(
            graph(
                "Commits",
                {"{{topology}}/{{computation}}": rate(f"{_COMMITS}_count", "topology, computation")},
                "Appends to journals.",
                "ops",
                width=12,
            )
        )
        .with_panel(
            graph(
                "Bytes of commits",
                {"{{topology}}/{{computation}}": rate("millwheel_entry_bytes_sum", "topology, computation")},
                "Journal entries.",
                "Bps",
                width=12,
            )
        )
    )


def _requests(made: Board) -> Board:
    return (
        made.with_row(row("Other requests"))
        .with_panel(
            graph(
                "Requests",
                {"{{operation}}": rate(f"{_REQUESTS}_count", "operation")},
                "All but commits.",
                "reqps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Time of requests, p99",
                {"{{operation}}": quantile(0.99, _REQUESTS, "operation")},
                "All but commits. The largest bound is ten seconds, which is a request's usual time limit.",
                "s",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Requests that fail",
                {"{{operation}}: {{outcome}}": rate(f"{_REQUESTS}_count", "operation, outcome", 'outcome!="ok"')},
                "`refused` is an answer: the journal has another owner. `unavailable` and `error` are failures.",
                "reqps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Calls that are repeated",
                {"{{instance}}": "millwheel_repeating_journals"},
                "Intervals and logs whose call, such as a commit, has failed and is repeated until the store answers.",
                width=6,
            )
        )
    )


def _authority(made: Board) -> Board:
    return (
        made.with_row(row("The authority's journals"))
        .with_panel(
            graph(
                "Time of appends",
                {"p50": quantile(0.5, _AUTHORITY), "p99": quantile(0.99, _AUTHORITY)},
                "Low watermarks wait for these appends.",
                "s",
                width=12,
            )
        )
        .with_panel(graph("Appends", {"appends": rate(f"{_AUTHORITY}_count")}, "Of all shards.", "ops", width=12))
    )
