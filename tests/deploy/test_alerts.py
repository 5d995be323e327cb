"""The alert rules speak of metrics that the server has, and Prometheus takes them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests import needed
from voicechat.faces.metrics import Metrics, Status
from voicechat.media.quality import Quality

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def _expressions() -> list[str]:
    tree = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule["expr"] for group in tree["groups"] for rule in group["rules"]]


def metric_names() -> set[str]:
    """Every name under which the server's metrics can be asked for, read by Prometheus's own parser."""
    metrics = Metrics()
    calls = Quality(1, 1, 1, 1, 0.01, 0.1)
    metrics.watch_calls(lambda: (calls, [calls]))
    metrics.watch(lambda: Status(True, {"a": "up"}, {"a": 1}, {"free": 1}, 0, 0, 0, {"0.99": 0.0}))
    names: set[str] = set()
    for family in text_string_to_metric_families(metrics.text().decode()):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(family.type, [""])
        if not family.name.endswith("_created"):  # when a metric began, which the client library adds
            names |= {family.name + suffix for suffix in suffixes}
    return names


def test_alerts_ask_for_metrics_that_are_there() -> None:
    asked = {name for expression in _expressions() for name in re.findall(r"voicechat_\w+", expression)}
    assert asked
    assert asked <= metric_names(), asked - metric_names()


def test_the_documentation_names_every_metric() -> None:
    text = (DEPLOY.parent / "docs" / "operating.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"voicechat_\w+", text))
    missing = {name for name in metric_names() if not any(name.startswith(known) for known in documented)}
    assert not missing


def test_prometheus_takes_the_rules() -> None:
    promtool = needed.program("promtool")
    done = subprocess.run([promtool, "check", "rules", str(DEPLOY / "alerts.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
