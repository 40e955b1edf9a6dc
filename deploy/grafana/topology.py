"""The dashboard of a topology: how far it is, what flows, what fails, by computation."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import Board, board, graph, number, quantile, rate, row, variable

__all__ = ["topology"]

_HERE: Final = 'topology=~"$topology"'
_PLACE: Final = "topology, computation"
_LINE: Final = "{{topology}}/{{computation}}"


def topology() -> Board:
    """Which computation of a topology is behind, or fails?"""
    chosen = variable("topology", "label_values(millwheel_records_total, topology)")
    made = board("topology", "topology", "Which computation is behind, or fails?", chosen)
    return _trouble(_connectors(_flow(_lags(_state(made)))))


def _state(made: Board) -> Board:
    return (
        made.with_row(row("State"))
        .with_panel(number("Records", rate("millwheel_records_total", where=_HERE), "Commits of records.", "rps"))
        .with_panel(
            number(
                "System lag",
                f"max(millwheel_system_lag_seconds{{{_HERE}}})",
                "How long the oldest work has waited.",
                "s",
                bad_from=60,
            )
        )
        .with_panel(
            number(
                "Data lag",
                f"max(millwheel_data_lag_seconds{{{_HERE}}})",
                "How old the time is up to which all results are complete. It is large where the data are old.",
                "s",
            )
        )
        .with_panel(
            number("Failing keys", f"sum(millwheel_failing_keys{{{_HERE}}})", "Blocked: their hook raises.", bad_from=1)
        )
        .with_panel(
            number(
                "Unhandled dead letters",
                f"sum(millwheel_unhandled_dead_letters{{{_HERE}}})",
                "Given up by their failure policy, and neither replayed nor discarded.",
                bad_from=1,
            )
        )
        .with_panel(
            number(
                "Intervals that do not run",
                f"sum(millwheel_master_stranded_intervals{{{_HERE}}})",
                "No worker has them, or their worker cannot load the code.",
                bad_from=1,
            )
        )
    )


def _lags(made: Board) -> Board:
    return (
        made.with_row(row("Time"))
        .with_panel(
            graph(
                "System lag",
                {_LINE: f"max by ({_PLACE}) (millwheel_system_lag_seconds{{{_HERE}}})"},
                "How long the oldest work has waited: a record for its commit, or a production for its ACK. "
                "The last computation on the way that is large is the cause.",
                "s",
                width=12,
            )
        )
        .with_panel(
            graph(
                "Data lag",
                {_LINE: f"max by ({_PLACE}) (millwheel_data_lag_seconds{{{_HERE}}})"},
                "Wall time minus the input's low watermark. A line that rises as fast as the clock is a low watermark "
                "that stands still: `millwheel watermark explain` names the reason.",
                "s",
                width=12,
            )
        )
    )


def _flow(made: Board) -> Board:
    full = f'{_HERE}, reason="full"'
    return (
        made.with_row(row("Flow"))
        .with_panel(graph("Records", {_LINE: rate("millwheel_records_total", _PLACE, _HERE)}, "Commits.", "rps"))
        .with_panel(
            graph(
                "From receipt to commit, p99",
                {_LINE: quantile(0.99, "millwheel_commit_latency_seconds", _PLACE, _HERE)},
                "Of records that are committed. Work that does not go on is in the system lag.",
                "s",
            )
        )
        .with_panel(
            graph(
                "From commit to ACK, p99",
                {_LINE: quantile(0.99, "millwheel_ack_latency_seconds", _PLACE, _HERE)},
                "Of productions: how long their consumers take. A slow consumer shows here at its senders.",
                "s",
            )
        )
        .with_panel(
            graph(
                "Queue",
                {_LINE: f"sum by ({_PLACE}) (millwheel_queued_records{{{_HERE}}})"},
                "Records received and not committed. An interval is full at 200,000.",
            )
        )
        .with_panel(
            graph(
                "Outbox",
                {_LINE: f"sum by ({_PLACE}) (millwheel_pending_productions{{{_HERE}}})"},
                "Productions without an ACK. An interval is full at 200,000.",
            )
        )
        .with_panel(
            graph(
                "Back-pressure",
                {f"{_LINE}: {{{{stream}}}}": rate("millwheel_refused_deliveries_total", f"{_PLACE}, stream", full)},
                "Deliveries refused because the queue is full. Their senders wait.",
                "ops",
            )
        )
        .with_panel(
            graph(
                "Full intervals",
                {_LINE: f"sum by ({_PLACE}) (avg_over_time(millwheel_full_intervals{{{_HERE}}}[$__rate_interval]))"},
                "Intervals that refuse records for lack of room: the share of the time, summed over intervals.",
                width=12,
            )
        )
        .with_panel(
            graph(
                "Queue, by sender",
                {
                    f"{_LINE}: {{{{stream}}}} {{{{injector}}}}": f"sum by ({_PLACE}, stream, injector) "
                    f"(millwheel_unacked_records{{{_HERE}}})"
                },
                "Who has sent what is in the queue. Without an injector's name, a computation has.",
                width=12,
            )
        )
    )


def _connectors(made: Board) -> Board:
    behind = "millwheel_source_behind_records", "millwheel_source_most_behind_records"
    return (
        made.with_row(row("Sources and sinks"))
        .with_panel(
            graph(
                "Records read",
                {"{{stream}}": rate("millwheel_source_read_records_total", "stream", _HERE)},
                "What sources bring. A read that fails is a failing hook of the computation that reads.",
                "rps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Behind",
                {
                    "{{stream}}, all splits": f"sum by (stream) ({behind[0]}{{{_HERE}}})",
                    "{{stream}}, most of one split": f"max by (stream) ({behind[1]}{{{_HERE}}})",
                },
                "Records that wait in the source, if it says how many. `millwheel key list` of the computation names "
                "the splits.",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Splits that are read",
                {"{{stream}}": f"sum by (stream) (millwheel_source_splits{{{_HERE}}})"},
                "Those that have not ended, such as the partitions of a topic.",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Bytes read",
                {"{{stream}}": rate("millwheel_source_read_bytes_total", "stream", _HERE)},
                "What sources bring, as it is stored.",
                "Bps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Records written",
                {_LINE: rate("millwheel_sink_written_records_total", _PLACE, _HERE)},
                "What sinks have written, with what they wrote again after a crash.",
                "rps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Bytes written",
                {_LINE: rate("millwheel_sink_written_bytes_total", _PLACE, _HERE)},
                "What sinks have written.",
                "Bps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Batches written",
                {_LINE: rate("millwheel_sink_write_seconds_count", _PLACE, _HERE)},
                "Many records and few batches are cheap for the other system.",
                "ops",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Time of a write, p99",
                {_LINE: quantile(0.99, "millwheel_sink_write_seconds", _PLACE, _HERE)},
                "The other system's time for a batch. The batches of a shard are written one after the other.",
                "s",
                width=6,
            )
        )
    )


def _trouble(made: Board) -> Board:
    damage = f'{{__name__=~"millwheel_quarantined_intervals|millwheel_damaged_rows", {_HERE}}}'
    return (
        made.with_row(row("Failures"))
        .with_panel(
            graph(
                "Failing keys and stopped intervals",
                {
                    f"{_LINE}: keys": f"sum by ({_PLACE}) (millwheel_failing_keys{{{_HERE}}})",
                    f"{_LINE}: stopped": f"sum by ({_PLACE}) (millwheel_stopped_intervals{{{_HERE}}})",
                },
                "Their hook raises. `millwheel cluster health` has the error.",
            )
        )
        .with_panel(
            graph(
                "Failures",
                {
                    f"{_LINE}: {{{{hook}}}}": rate("millwheel_hook_failures_total", f"{_PLACE}, hook", _HERE),
                    f"{_LINE}: key of {{{{stream}}}}": rate("millwheel_key_failures_total", f"{_PLACE}, stream", _HERE),
                },
                "Attempts of hooks and calls of key functions that raised.",
                "ops",
            )
        )
        .with_panel(
            graph(
                "Dead letters",
                {_LINE: rate("millwheel_dead_letters_total", _PLACE, _HERE)},
                "Records and timers given up by their failure policy.",
                "ops",
            )
        )
        .with_panel(
            graph(
                "Late records",
                {
                    f"{_LINE}: late": rate("millwheel_late_records_total", _PLACE, _HERE),
                    f"{_LINE}: without effect": rate("millwheel_dropped_records_total", _PLACE, _HERE),
                },
                "Records behind the low watermark, and those of them that were dropped.",
                "rps",
            )
        )
        .with_panel(
            graph(
                "Intervals that do not run",
                {
                    f"{_LINE}: {{{{reason}}}}": f"sum by ({_PLACE}, reason) "
                    f"(millwheel_master_stranded_intervals{{{_HERE}}})"
                },
                "no_owner: no worker has them. not_loaded: their worker cannot load the code.",
            )
        )
        .with_panel(
            graph(
                "Damage",
                {_LINE: f"sum by ({_PLACE}) ({damage})"},
                "Quarantined intervals, and keys with a damaged row.",
            )
        )
    )
