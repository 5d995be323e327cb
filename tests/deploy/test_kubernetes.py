"""The Helm chart, rendered by Helm and held against Kubernetes' own schemas.

``helm`` itself where it is installed, else the Go library by its bindings (``pip install helm-python-sdk``, 80 MB).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests import needed
from voicechat.config import load_settings

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "voicechat"
EVERYTHING: dict[str, Any] = {
    "keysSecret": "keys",
    "apiKeysSecret": "more",
    "image": {"tag": "cuda"},
    "gpu": {"count": 1},
    "settings": {"pool": {"slots": 4}, "server": {"allowed_origins": ["https://a.example", "https://b.example"]},
                 "telemetry": {"otlp_endpoint": "http://collector:4318"}},
    "drainSeconds": 60,
    "hostNetwork": True,
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls", "annotations": {"a": "b"}},
    "autoscaling": {"enabled": True},
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}], "to": [{"to": [{"podSelector": {}}]}]},
    "metrics": {"serviceMonitor": True, "keySecret": "scraper"},
    "persistence": {"storageClass": "fast"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"gpu": "yes"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}  # fmt: skip


def render(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The manifests by kind. Raises if Helm refuses."""
    if (helm := shutil.which("helm")) is not None:
        command = [helm, "template", "demo", str(CHART), "--values", "-"]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr)
        texts = [done.stdout]
    else:
        bindings = needed.module("helm_python")
        with bindings.Chart.load(str(CHART)) as chart:
            try:
                files = chart.render(values, name="demo", namespace="voices")
            except bindings.HelmError as error:
                raise ValueError(str(error)) from error
        texts = [text for name, text in files.items() if name.endswith(".yaml")]
    found = [manifest for text in texts for manifest in yaml.safe_load_all(text) if manifest]
    return {manifest["kind"]: manifest for manifest in found}


@pytest.mark.slow
@pytest.mark.parametrize("values", [{"anonymous": True}, EVERYTHING])
@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_what_is_rendered_is_valid(values: dict[str, Any], version: str) -> None:
    import kubernetes_validate

    manifests = render(values)
    assert {"StatefulSet", "Service", "PodDisruptionBudget"} <= manifests.keys()
    for kind, manifest in manifests.items():
        if kind != "ServiceMonitor":  # which Kubernetes does not know by itself
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.slow
def test_everything_that_can_be_asked_for_is_there() -> None:
    manifests = render(EVERYTHING)
    kinds = {"StatefulSet", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "Ingress"}
    assert manifests.keys() == kinds | {"ServiceMonitor"}
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] == 85
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    environment = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    settings = load_settings("embedded", environ=environment)
    assert settings.pool.slots == 4
    assert settings.server.drain_s == 60
    assert settings.server.allowed_origins == ("https://a.example", "https://b.example")
    assert settings.log.format == "json"
    selected = manifests["Service"]["spec"]["selector"].items()
    assert selected <= manifests["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "why"),
    [({}, "nobody needs a key"), ({"anonymous": True, "replicas": "two"}, "replicas"),
     ({"anonymous": True, "settings": {"voicebox": {"latency_first": {"first_chunk": 2}}}}, "deeper fields")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        render(values)


def test_the_charts_own_values_follow_its_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(values)
    assert values.keys() <= schema["properties"].keys()
