"""The dashboard of one computation: its hooks, its commits, its input and its state, by worker."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import Board, board, distribution, graph, quantile, rate, row, variable

__all__ = ["computation"]

_HERE: Final = 'topology="$topology", computation="$computation"'


def computation() -> Board:
    """Why is a computation slow? Which worker, which hook?"""
    chosen = (
        variable("topology", "label_values(millwheel_records_total, topology)", several=False),
        variable(
            "computation", 'label_values(millwheel_records_total{topology="$topology"}, computation)', several=False
        ),
    )
    made = board("computation", "computation", "Why is it slow? Which worker, which hook?", *chosen)
    return _state(_input(_commits(_hooks(made))))


def _hooks(made: Board) -> Board:
    return (
        made.with_row(row("Hooks"))
        .with_panel(
            graph(
                "Records by worker",
                {"{{instance}}": rate("millwheel_records_total", "instance", _HERE)},
                "Commits of records. One worker far above the others: an interval may be too hot.",
                "rps",
            )
        )
        .with_panel(
            graph(
                "Cores in hooks",
                {"{{hook}}": rate("millwheel_hook_seconds_total", "hook", _HERE)},
                "Seconds in hooks per second, over all workers. An asynchronous hook counts with its waits.",
            )
        )
        .with_panel(
            graph(
                "Time of a call",
                {
                    "{{hook}} p50": quantile(0.5, "millwheel_hook_call_seconds", "hook", _HERE),
                    "{{hook}} p99": quantile(0.99, "millwheel_hook_call_seconds", "hook", _HERE),
                },
                "The mean of each batch of calls.",
                "s",
            )
        )
        .with_panel(
            graph("Calls", {"{{hook}}": rate("millwheel_hook_calls_total", "hook", _HERE)}, "Calls of hooks.", "ops")
        )
        .with_panel(
            graph(
                "Failures",
                {"{{hook}}": rate("millwheel_hook_failures_total", "hook", _HERE)},
                "Attempts that raised. The log of the worker has the traceback.",
                "ops",
            )
        )
        .with_panel(
            graph(
                "Blocked event loop",
                {
                    "{{hook}}: slow batches": rate("millwheel_hook_slow_batches_total", "hook", _HERE),
                    "{{hook}} on {{instance}}: seconds now": f"millwheel_hook_blocking_seconds{{{_HERE}}}",
                },
                "Batches that took longer than worker.slow_hook_seconds, and a hook that does so now.",
            )
        )
    )


def _commits(made: Board) -> Board:
    latency, acks = "millwheel_commit_latency_seconds", "millwheel_ack_latency_seconds"
    return (
        made.with_row(row("Commits"))
        .with_panel(
            distribution(
                "From receipt to commit", latency, _HERE, "How many records took how long from receipt to commit."
            )
        )
        .with_panel(
            graph(
                "Latency",
                {
                    "commit p50": quantile(0.5, latency, where=_HERE),
                    "commit p99": quantile(0.99, latency, where=_HERE),
                    "ACK p50": quantile(0.5, acks, where=_HERE),
                    "ACK p99": quantile(0.99, acks, where=_HERE),
                },
                "From receipt to commit; from the commit of a production to the ACK of its consumer.",
                "s",
            )
        )
        .with_panel(
            graph(
                "Time at the store",
                {
                    "p50": quantile(0.5, "millwheel_append_seconds", where=_HERE),
                    "p99": quantile(0.99, "millwheel_append_seconds", where=_HERE),
                },
                "From the sending of a commit to the store until it is known to be there.",
                "s",
            )
        )
        .with_panel(
            graph("Commits", {"commits": rate("millwheel_append_seconds_count", where=_HERE)}, "Appends.", "ops")
        )
        .with_panel(
            graph(
                "Records of a commit",
                {
                    "mean": f"{rate('millwheel_entry_records_sum', where=_HERE)}"
                    f" / {rate('millwheel_entry_records_count', where=_HERE)}"
                },
                "Batches grow with the load, up to 8,192 records.",
            )
        )
        .with_panel(
            graph("Bytes", {"entries": rate("millwheel_entry_bytes_sum", where=_HERE)}, "Journal entries.", "Bps")
        )
    )


def _input(made: Board) -> Board:
    return (
        made.with_row(row("Input"))
        .with_panel(
            graph(
                "Received records",
                {"{{stream}}": rate("millwheel_received_records_total", "stream", _HERE)},
                "Fresh records.",
                "rps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Received bytes",
                {"{{stream}}": rate("millwheel_received_bytes_total", "stream", _HERE)},
                "Values of fresh records.",
                "Bps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Refused deliveries",
                {"{{stream}}: {{reason}}": rate("millwheel_refused_deliveries_total", "stream, reason", _HERE)},
                "Their sender keeps the records. `full` is back-pressure; the others come with a takeover.",
                "ops",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Duplicates and late records",
                {
                    "duplicates": rate("millwheel_duplicates_total", where=_HERE),
                    "late": rate("millwheel_late_records_total", where=_HERE),
                },
                "Duplicates have no effect. Many of them: ACKs are lost, or a sender is restarted.",
                "rps",
                width=6,
            )
        )
    )


def _state(made: Board) -> Board:
    panels = {
        "Intervals": ("millwheel_intervals", "Intervals that run on each worker.", "short"),
        "Queue": ("millwheel_queued_records", "Records received and not committed.", "short"),
        "Outbox": ("millwheel_pending_productions", "Productions without an ACK.", "short"),
        "Cached states": ("millwheel_cache_bytes", "worker.cache_mib limits each interval.", "bytes"),
        "Timers": ("millwheel_timers", "Timers that are set.", "short"),
        "Blocked keys": ("millwheel_blocked_keys", "Keys that wait for a row, a hook or another attempt.", "short"),
    }
    made = made.with_row(row("State, by worker"))
    for title, (metric, meaning, unit) in panels.items():
        made = made.with_panel(
            graph(title, {"{{instance}}": f"sum by (instance) ({metric}{{{_HERE}}})"}, meaning, unit)
        )
    return made
