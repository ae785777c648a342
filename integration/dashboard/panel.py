"""The parts of a Grafana dashboard, and their JSON: as few of its fields as say what is wanted.

https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

WIDTH = 24
"""Columns of a dashboard."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Unit(StrEnum):
    """Grafana's names of units."""

    NONE = "short"
    SECONDS = "s"
    SHARE = "percentunit"
    PER_SECOND = "ops"
    BYTES = "bytes"
    BYTES_PER_SECOND = "binBps"
    SINCE_1970 = "dateTimeFromNow"


class Style(StrEnum):
    """How a panel shows its series."""

    LINES = "timeseries"
    NUMBER = "stat"
    BARS = "bargauge"


@dataclass(frozen=True, slots=True)
class Curve:
    """One query; `legend` may name labels: `{{pool}}`."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`thresholds` are (value, color), ascending; the color below the first is green."""

    title: str
    curves: tuple[Curve, ...]
    unit: Unit = Unit.NONE
    style: Style = Style.LINES
    about: str = ""
    stacked: bool = False
    width: int = 8
    thresholds: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard: the values of a label of a metric."""

    name: str
    label: str
    metric: str


RATE = "[$__rate_interval]"
"""The range of a rate, as Grafana chooses it."""


def quantile(share: float, histogram: str, selector: str, *, by: str = "") -> str:
    """The query for a quantile of a histogram, over all series that have the same label `by`."""
    labels = ", ".join(filter(None, ("le", by)))
    selected = f"{histogram}_bucket{{{selector}}}" if selector else f"{histogram}_bucket"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({selected}{RATE})))"


_PANEL_HEIGHT = 8
_ROW_HEIGHT = 1


def render_dashboard(
    *, uid: str, title: str, about: str, variables: Iterable[Variable], rows: Iterable[Row]
) -> dict[str, Any]:
    """The document that Grafana imports. Panels fill lines from left to right."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        position = {"x": 0, "y": top, "w": WIDTH, "h": _ROW_HEIGHT}
        panels.append({"type": "row", "title": row.title, "collapsed": False, "gridPos": position, "panels": []})
        top += _ROW_HEIGHT
        left = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + _PANEL_HEIGHT
            position = {"x": left, "y": top, "w": panel.width, "h": _PANEL_HEIGHT}
            panels.append(_render_panel(panel) | {"gridPos": position})
            left += panel.width
        top += _PANEL_HEIGHT
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["coil"],
        "schemaVersion": 36,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_DATA_SOURCE, *(_render_variable(variable) for variable in variables)]},
        "panels": [panel | {"id": number} for number, panel in enumerate(panels, start=1)],
    }


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Every PromQL expression of a rendered dashboard, variables included."""
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = variable["definition"].removeprefix("label_values(").removesuffix(")").split(", ")
            found.append(f"count by ({label}) ({metric})")
    return found


_DATA_SOURCE = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
    "hide": 0,
}


def _render_variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _render_panel(panel: Panel) -> dict[str, Any]:
    steps = [
        {"color": "green", "value": None},
        *({"color": color, "value": value} for value, color in panel.thresholds),
    ]
    defaults: dict[str, Any] = {"unit": panel.unit.value, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.style is Style.LINES:
        defaults["min"] = 0
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 30 if panel.stacked else 5, "stacking": stacking, "showPoints": "never"}
    if panel.unit is Unit.SHARE:
        defaults |= {"min": 0, "max": 1}
    return {
        "type": panel.style.value,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.style],
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": curve.expression,
                "legendFormat": curve.legend,
                "instant": panel.style is not Style.LINES,
                "range": panel.style is Style.LINES,
            }
            for number, curve in enumerate(panel.curves)
        ],
    }


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[Style, dict[str, Any]] = {
    Style.LINES: {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    Style.NUMBER: {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "area"},
    Style.BARS: {"reduceOptions": _LAST, "orientation": "horizontal", "displayMode": "gradient"},
}
