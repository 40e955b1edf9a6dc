"""Parts of dashboards: queries of Prometheus, panels of three kinds, and a dashboard with its variables."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final, TypeAlias

with warnings.catch_warnings():
    # The library prefers Grafana's second dashboard model. Grafana 12 and later alone load it; all load this one.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
    from grafana_foundation_sdk.models.common import (
        BigValueColorMode,
        BigValueGraphMode,
        DataSourceRef,
        LegendDisplayMode,
        LegendPlacement,
        SortOrder,
        TooltipDisplayMode,
    )
    from grafana_foundation_sdk.models.dashboard import (
        Dashboard,
        DashboardCursorSync,
        DashboardLinkType,
        Threshold,
        ThresholdsMode,
        VariableHide,
        VariableOption,
        VariableRefresh,
        VariableSort,
    )
    from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

__all__ = ["Board", "Dashboard", "board", "distribution", "graph", "number", "quantile", "rate", "row", "variable"]

Board: TypeAlias = dashboard.Dashboard

_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_TAG: Final = "millwheel"
_GREEN: Final = "green"
_RED: Final = "red"


def rate(metric: str, by: str = "", where: str = "") -> str:
    """The query for a counter's increase per second, summed over all but the labels ``by``."""
    return f"{_sum(by)} (rate({metric}{{{where}}}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str = "", where: str = "") -> str:
    """The query for a quantile of a histogram, for each value of the labels ``by``."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, {rate(f'{histogram}_bucket', labels, where)})"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"


def graph(
    title: str, queries: Mapping[str, str], meaning: str, unit: str = "short", *, width: int = 8
) -> timeseries.Panel:
    """A panel of lines over time. Its legend begins with the largest, because most lines of a failure are at zero.

    Args:
        title: The title.
        queries: Queries by the legend of their lines, such as ``{{computation}}``.
        meaning: What the lines are, and what to look for.
        unit: Grafana's name of the unit.
        width: In 24ths of the dashboard.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(meaning)
        .datasource(_SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(8)
        .fill_opacity(8)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
            .sort_by("Max")
            .sort_desc(True)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    for name, (legend, query) in zip("ABCDEFGH", queries.items(), strict=False):
        panel.with_target(_query(query, legend).ref_id(name))
    return panel


def number(
    title: str, query: str, meaning: str, unit: str = "short", *, bad_from: float | None = None, bad_below: float = 0
) -> stat.Panel:
    """A panel with the newest value.

    It is red from ``bad_from`` on, and below ``bad_below``.
    """
    steps = [Threshold(value=None, color=_RED if bad_below else _GREEN)]
    if bad_below:
        steps.append(Threshold(value=bad_below, color=_GREEN))
    if bad_from is not None:
        steps.append(Threshold(value=bad_from, color=_RED))
    return (
        stat.Panel()
        .title(title)
        .description(meaning)
        .datasource(_SOURCE)
        .unit(unit)
        .span(4)
        .height(4)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(_query(query, "").ref_id("A"))
    )


def distribution(title: str, histogram: str, where: str, meaning: str, unit: str = "s") -> heatmap.Panel:
    """A panel that shows how the values of a histogram are distributed over time."""
    query = _query(rate(f"{histogram}_bucket", "le", where), "{{le}}").format(PromQueryFormat.HEATMAP)
    return (
        heatmap.Panel()
        .title(title)
        .description(meaning)
        .datasource(_SOURCE)
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .span(8)
        .height(8)
        .with_target(query.ref_id("A"))
    )


def row(title: str) -> dashboard.Row:
    """A heading."""
    return dashboard.Row(title)


def variable(name: str, query: str, *, several: bool = True) -> dashboard.QueryVariable:
    """A choice above the dashboard: the values of a label. ``several``: all at first, and then any of them."""
    made = (
        dashboard.QueryVariable(name)
        .label(name)
        .datasource(_SOURCE)
        .query({"query": query, "refId": name})
        .definition(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if several:
        made = made.multi(True).include_all(True).current(VariableOption(text="All", value="$__all"))
    return made


def board(name: str, title: str, meaning: str, *variables: dashboard.QueryVariable) -> Board:
    """A dashboard without panels, with links to the others."""
    made = (
        dashboard.Dashboard(f"MillWheel: {title}")
        .uid(f"millwheel-{name}")
        .description(meaning)
        .tags([_TAG])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            dashboard.DashboardLink("MillWheel")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(
            dashboard.DatasourceVariable("datasource")
            .label("data source")
            .type("prometheus")
            .hide(VariableHide.DONT_HIDE)
        )
    )
    for one in variables:
        made = made.with_variable(one)
    return made


def _query(text: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(text).legend_format(legend).datasource(_SOURCE)
