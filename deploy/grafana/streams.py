"""The dashboard of injectors and streams: how far sources are, what they bring, what logs keep and who reads them."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import Board, board, graph, rate, row, variable

__all__ = ["streams"]

_HERE: Final = 'stream=~"$stream"'
_SOURCES: Final = 'millwheel_authority_watermark_seconds{kind="source"}'
_BLOCKED: Final = "millwheel_injector_blocked_seconds_total"
_MISSED: Final = "millwheel_subscription_missed_records_total"
_NAMES: Final = '{__name__=~"millwheel_received_records_total|millwheel_log_records"}'


def streams() -> Board:
    """Which source is silent or behind? Which subscriber is?"""
    chosen = variable("stream", f"label_values({_NAMES}, stream)")
    made = board("streams", "injectors and streams", "Which source is silent or behind? Which subscriber is?", chosen)
    return _subscriptions(_logs(_flow(_injectors(_sources(made)))))


def _sources(made: Board) -> Board:
    return (
        made.with_row(row("Sources"))
        .with_panel(
            graph(
                "Age of the low watermark",
                {"{{stream}}": f"time() - max by (stream) ({_SOURCES} < Inf > 0)"},
                "Wall time minus the low watermark of all injector processes of a stream. A line that rises as fast as "
                "the clock: `millwheel injector list` shows which process is silent. A stream that has ended has none.",
                "s",
            )
        )
        .with_panel(
            graph(
                "Reports of low watermarks",
                {"counted": rate("millwheel_authority_reports_total")},
                "Reports of intervals and injectors to the authority.",
                "ops",
            )
        )
        .with_panel(
            graph(
                "Refused reports",
                {"{{reason}}": rate("millwheel_authority_refused_total", "reason")},
                "Of processes and owners that have been replaced. They come with takeovers.",
                "ops",
            )
        )
    )


def _injectors(made: Board) -> Board:
    each = "stream, process"
    return (
        made.with_row(row("Programs that inject"))
        .with_panel(
            graph(
                "Sent records",
                {"{{stream}}: {{process}}": rate("millwheel_injector_sent_records_total", each, _HERE)},
                "Records that injectors have taken. Only programs whose own metrics are scraped are here.",
                "rps",
            )
        )
        .with_panel(
            graph(
                "Time in which a call waits",
                {"{{stream}}: {{process}}, {{cause}}": rate(_BLOCKED, f"{each}, cause", _HERE)},
                "The share of the time. `window`: too many records have no ACK. `skew`: the records are too far ahead "
                "of the low watermark.",
                "percentunit",
            )
        )
        .with_panel(
            graph(
                "Records without an ACK",
                {
                    "{{stream}}: {{process}}, sent": f"sum by ({each}) (millwheel_injector_unacked_records{{{_HERE}}})",
                    "{{stream}}: {{injector}}, received": "sum by (stream, injector) "
                    f'(millwheel_unacked_records{{{_HERE}, injector!=""}})',
                },
                "Sent: by the injector's count. Received: those that an interval has. An injector waits at 50,000.",
            )
        )
        .with_panel(
            graph(
                "Sent again",
                {"{{stream}}: {{process}}": rate("millwheel_injector_resent_records_total", each, _HERE)},
                "After a refusal, a lost connection, a change of owner, or a missing answer.",
                "rps",
            )
        )
        .with_panel(
            graph(
                "Late when sent",
                {"{{stream}}: {{process}}": rate("millwheel_injector_late_records_total", each, _HERE)},
                "Records that were behind the watermark that the process had published.",
                "rps",
            )
        )
        .with_panel(
            graph(
                "Stopped injectors",
                {"{{stream}}: {{process}}": f"max by ({each}) (millwheel_injector_failed{{{_HERE}}})"},
                "1: the injector has stopped by an error. The program's log has it.",
            )
        )
    )


def _subscriptions(made: Board) -> Board:
    return (
        made.with_row(row("Programs that subscribe"))
        .with_panel(
            graph(
                "Taken and not ACKed",
                {
                    "{{stream}}: {{cursor}}": "sum by (stream, cursor) "
                    f"(millwheel_subscription_unacked_records{{{_HERE}}})"
                },
                "What the program has in hand. Only programs whose own metrics are scraped are here.",
            )
        )
        .with_panel(
            graph(
                "Taken records",
                {
                    "{{stream}}: {{cursor}}": rate(
                        "millwheel_subscription_received_records_total", "stream, cursor", _HERE
                    ),
                    "{{stream}}: {{cursor}}, ACKed": rate(
                        "millwheel_subscription_acked_records_total", "stream, cursor", _HERE
                    ),
                },
                "Far fewer ACKed than taken: the program does not finish its work.",
                "rps",
            )
        )
        .with_panel(
            graph(
                "Missed records",
                {"{{stream}}: {{cursor}}": rate(_MISSED, "stream, cursor", _HERE)},
                "The log had deleted them before a tail got them. A cursor misses none.",
                "rps",
            )
        )
    )


def _flow(made: Board) -> Board:
    return (
        made.with_row(row("Records"))
        .with_panel(
            graph(
                "Received records",
                {
                    "{{stream}} at {{topology}}/{{computation}}": rate(
                        "millwheel_received_records_total", "stream, topology, computation", _HERE
                    )
                },
                "Fresh records at each consumer.",
                "rps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Received bytes",
                {"{{stream}}": rate("millwheel_received_bytes_total", "stream", _HERE)},
                "Values of fresh records, at all consumers.",
                "Bps",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Refused deliveries",
                {"{{stream}}: {{reason}}": rate("millwheel_refused_deliveries_total", "stream, reason", _HERE)},
                "Their sender keeps the records. `full` is back-pressure: the consumer is too slow.",
                "ops",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Key functions that raise",
                {"{{stream}}": rate("millwheel_key_failures_total", "stream", _HERE)},
                "Such a record waits in its injector. `millwheel cluster health` has the error.",
                "ops",
                width=6,
            )
        )
    )


def _logs(made: Board) -> Board:
    return (
        made.with_row(row("Logs"))
        .with_panel(
            graph(
                "Cursor lag",
                {"{{stream}}: {{cursor}}": f"millwheel_cursor_lag_records{{{_HERE}}}"},
                "Records that a subscriber has not ACKed. At the log's cap the producers wait for it.",
                width=8,
            )
        )
        .with_panel(
            graph("Kept records", {"{{stream}}": f"millwheel_log_records{{{_HERE}}}"}, "What logs keep.", width=8)
        )
        .with_panel(
            graph("Kept bytes", {"{{stream}}": f"millwheel_log_bytes{{{_HERE}}}"}, "What logs keep.", "bytes", width=8)
        )
        .with_panel(
            graph(
                "Appended records",
                {"{{stream}}": rate("millwheel_log_appended_records_total", "stream", _HERE)},
                "Records that logs get.",
                "rps",
                width=12,
            )
        )
        .with_panel(
            graph(
                "Full logs",
                {"{{stream}}": f"millwheel_log_full{{{_HERE}}}"},
                "1: the log refuses records. It keeps more than its cap, or the store is behind.",
                width=12,
            )
        )
    )
