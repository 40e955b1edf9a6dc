"""The dashboard of the cluster as a whole: its processes, its masters, its calls, the coordinator."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import Board, board, graph, number, quantile, rate, row

__all__ = ["cluster"]

_OURS: Final = 'job="millwheel"'
_SILENT: Final = f"(sum(1 - up{{{_OURS}}}) or vector(0)) + (sum(1 - millwheel_ready) or vector(0))"
_ALERTS: Final = 'ALERTS{alertstate="firing", alertname=~"Millwheel.*"}'


def cluster() -> Board:
    """Begin here when an alert fires."""
    made = board("cluster", "cluster", "Is the cluster well? Which process, which service is not?")
    return _calls(_masters(_processes(_state(made))))


def _state(made: Board) -> Board:
    return (
        made.with_row(row("State"))
        .with_panel(
            number(
                "Leading masters",
                "sum(millwheel_master_leads)",
                "Exactly one leads.",
                bad_below=1,
                bad_from=2,
            )
        )
        .with_panel(
            number(
                "Processes that do not serve",
                _SILENT,
                "Processes whose page cannot be read, or that wait for something. /readyz of each says what for.",
                bad_from=1,
            )
        )
        .with_panel(
            number(
                "Intervals that do not run",
                "sum(millwheel_master_stranded_intervals)",
                "No worker has them, or their worker cannot load the code.",
                bad_from=1,
            )
        )
        .with_panel(
            number("Failing keys", "sum(millwheel_failing_keys)", "Keys blocked because their hook raises.", bad_from=1)
        )
        .with_panel(
            number(
                "System lag",
                "max(millwheel_system_lag_seconds)",
                "How long the oldest work of any computation has waited.",
                "s",
                bad_from=60,
            )
        )
        .with_panel(
            number("Alerts", f"count({_ALERTS}) or vector(0)", "docs/runbook.md has a section for each.", bad_from=1)
        )
    )


def _processes(made: Board) -> Board:
    return (
        made.with_row(row("Processes"))
        .with_panel(
            graph(
                "CPU",
                {"{{instance}}": f"rate(process_cpu_seconds_total{{{_OURS}}}[$__rate_interval])"},
                "Cores that each process uses. A worker process can use little more than one.",
            )
        )
        .with_panel(
            graph(
                "Memory",
                {"{{instance}}": f"process_resident_memory_bytes{{{_OURS}}}"},
                "Resident memory of each process.",
                "bytes",
            )
        )
        .with_panel(
            graph(
                "Ready",
                {"{{instance}}": "millwheel_ready"},
                "1: the process serves its role. 0: it waits for a service, or stops.",
            )
        )
        .with_panel(
            graph(
                "Starts within the hour",
                {"{{instance}}": f"changes(process_start_time_seconds{{{_OURS}}}[1h])"},
                "A process that starts over and over: read its log.",
            )
        )
        .with_panel(
            graph(
                "Open files",
                {"{{instance}}": f"process_open_fds{{{_OURS}}} / process_max_fds{{{_OURS}}}"},
                "The share of a process's limit. At the limit it accepts no connection.",
                "percentunit",
            )
        )
        .with_panel(
            graph(
                "Time without CPU",
                {"{{instance}}": "rate(millwheel_stalled_seconds_total[$__rate_interval])"},
                "The share of its time in which a process did not get to run: its machine swaps, or has no CPU left.",
                "percentunit",
                width=8,
            )
        )
        .with_panel(
            graph(
                "Broken links",
                {"{{instance}} to {{peer}}": "millwheel_worker_link_broken_seconds > 0"},
                "For how long a worker has not reached another one.",
                "s",
                width=8,
            )
        )
        .with_panel(
            graph(
                "Nodes of the store that are not reached",
                {"{{node}} by {{instance}}": "millwheel_store_node_down_seconds > 0"},
                "All processes: the node is down. One alone: its link is cut.",
                "s",
                width=8,
            )
        )
        .with_panel(graph("Tasks", {"{{instance}}": "millwheel_tasks"}, "asyncio tasks. A steady growth is a leak."))
    )


def _masters(made: Board) -> Board:
    return (
        made.with_row(row("Masters and intervals"))
        .with_panel(
            graph(
                "Leader",
                {"{{instance}}": "millwheel_master_leads"},
                "Which master leads. Many changes: see the coordinator's times, and the machine of the masters.",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Intervals by worker",
                {"{{instance}}": "sum by (instance) (millwheel_intervals)"},
                "Intervals that each process runs.",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Moves, splits and merges",
                {
                    "{{kind}} by {{by}}: {{outcome}}": "sum by (kind, by, outcome) "
                    "(increase(millwheel_master_interval_operations_total[$__rate_interval]))"
                },
                "Changes of intervals, by the balancer and by operators.",
                width=6,
            )
        )
        .with_panel(
            graph(
                "Hot keys",
                {"{{topology}}/{{computation}}": "millwheel_master_hot_keys"},
                "Keys too busy for one interval. `millwheel cluster health` names them.",
                width=6,
            )
        )
    )


def _calls(made: Board) -> Board:
    coordinator = "millwheel_coordinator_request_seconds"
    return (
        made.with_row(row("Calls and coordinator"))
        .with_panel(
            graph("Calls", {"{{method}}": f"{rate('millwheel_rpc_seconds_count', 'method')} > 0"}, "Calls.", "reqps")
        )
        .with_panel(
            graph(
                "Time of calls, p99",
                {"{{method}}": quantile(0.99, "millwheel_rpc_seconds", "method")},
                "Of calls with one response.",
                "s",
            )
        )
        .with_panel(
            graph(
                "Calls that fail",
                {
                    "{{method}}: {{code}}": rate("millwheel_rpc_seconds_count", "method, code", 'code!="OK"'),
                    "{{method}} (stream): {{code}}": rate(
                        "millwheel_rpc_streams_total", "method, code", 'code!~"OK|CANCELLED"'
                    ),
                },
                "By method and status. Some come with each takeover.",
                "reqps",
            )
        )
        .with_panel(
            graph(
                "Open calls",
                {"{{method}}": "sum by (method) (millwheel_rpc_open_calls) > 0"},
                "Calls that have not ended.",
            )
        )
        .with_panel(
            graph(
                "Time of the coordinator, p99",
                {"{{operation}}": quantile(0.99, coordinator, "operation")},
                "Requests to etcd. Processes keep their leases by them.",
                "s",
            )
        )
        .with_panel(
            graph(
                "Requests to the coordinator",
                {"{{outcome}}": rate(f"{coordinator}_count", "outcome")},
                "By outcome. `refused` is an answer: another was first. `unavailable` and `error` are failures.",
                "reqps",
            )
        )
    )
