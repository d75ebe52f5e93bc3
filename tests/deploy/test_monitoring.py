"""The dashboard and the alerts ask for metrics that a server has, with labels and values that it gives them."""

import json
import re
from itertools import combinations
from typing import Any, get_args

import pytest
from tests.deploy.shipped import DEPLOY, find_metrics, list_known_metrics, read_yaml

from mainspring.core.events import Status
from mainspring.features.audit.daily_check import Outcome
from mainspring.features.traces.failures import Severity
from mainspring.features.traces.metrics import Metrics
from mainspring.features.traces.trace_record import StepStatus

DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/mainspring.json").read_text())
ALERTS = [rule for group in read_yaml(DEPLOY / "prometheus/alerts.yml")[0]["groups"] for rule in group["rules"]]
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]] + [rule["expr"] for rule in ALERTS]
VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("mainspring_runs_total", "status"): get_args(Status),
    ("mainspring_turns_total", "status"): get_args(StepStatus),
    ("mainspring_failures_total", "severity"): get_args(Severity),
    ("mainspring_audit_checks_total", "outcome"): get_args(Outcome),
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_exists_with_its_labels(expression: str) -> None:
    known = list_known_metrics()
    assert find_metrics(expression) <= known
    labels = {family.name: set(family._labels) for family in Metrics()._families} | {name: set() for name in known}
    labels |= {family.name: {*family._labels} for family in Metrics()._families}
    given = {label for name in find_metrics(expression) for label in labels[name]} | {"le", "instance", "job"}
    for names in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {name.strip() for name in names.split(",")} <= given
    for metric, label, value in re.findall(r'(\w+)\{(\w+)="([^"]*)"\}', expression):
        if metric.startswith("mainspring_"):
            assert value in VALUES[metric, label]
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")


def test_every_metric_is_on_the_dashboard() -> None:
    shown = find_metrics(json.dumps([panel["targets"] for panel in DASHBOARD["panels"]]))
    assert shown == list_known_metrics()


def test_no_two_panels_are_in_the_same_place_or_have_the_same_id() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_below, (one, other)
    assert max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in panels) <= 24


def test_the_dashboard_asks_the_data_source_that_is_provisioned() -> None:
    [sources] = read_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")
    [uid] = [source["uid"] for source in sources["datasources"]]
    asked: list[Any] = [panel["datasource"] for panel in DASHBOARD["panels"]]
    asked += [target["datasource"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert all(source == {"type": "prometheus", "uid": uid} for source in asked)


def test_every_alert_says_what_is_the_matter_and_the_docs_what_to_do() -> None:
    page = (DEPLOY.parent / "docs/deployment.md").read_text()
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in page
