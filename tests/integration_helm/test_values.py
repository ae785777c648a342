"""The chart's values: every profile passes Helm's own check, and what is wrong is said by name."""

import json
from typing import Any

import pytest
import yaml

from integration.helm.chart import CHART, PROFILES, lint, profile_names, render
from integration.helm.program import HelmError
from tests.integration_helm.everything import CLEANUP, EVERYTHING, ON_POD_NETWORK, names

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
ENI = {"addressSource": "aws-eni"}
BLUE = {"clusterName": "blue"}
NEUTRON = {"addressSource": "neutron"}
ON, OFF = {"enabled": True}, {"enabled": False}
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def test_helm_finds_nothing_to_say_about_the_defaults() -> None:
    assert "0 chart(s) failed" in lint()


@pytest.mark.parametrize("profile", profile_names())
def test_helm_finds_nothing_to_say_about_a_profile(profile: str) -> None:
    assert "0 chart(s) failed" in lint(profile)


def test_the_profiles_are_those_that_are_promised() -> None:
    assert profile_names() == [
        *("aws-eni", "dual-stack", "egress-only", "eip-gateway"),
        *("eip-only", "ipam-egress", "neutron"),
    ]


def test_the_default_is_the_profile_ipam_egress() -> None:
    assert render(None, "ipam-egress") == render()


@pytest.mark.parametrize(
    ("profile", "programs"),
    [
        ("ipam-egress", {"coild", "coil-ipam-controller", "coil-egress-controller"}),
        ("dual-stack", {"coild", "coil-ipam-controller", "coil-egress-controller"}),
        ("egress-only", {"coild", "coil-egress-controller"}),
        ("aws-eni", {"coild", "coil-ipam-controller", "coil-egress-controller"}),
        ("neutron", {"coild", "coil-ipam-controller", "coil-raven"}),
        ("eip-gateway", {"coild", "coil-ipam-controller", "coil-egress-controller", "coil-egress-agent-node"}),
    ],
)
def test_a_profile_runs_these_programs(profile: str, programs: set[str]) -> None:
    documents = render(None, profile)
    tests = {"coil-test-server"}
    assert names(documents, "Deployment", "DaemonSet") - tests == programs


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ipam": {"replicas": 0}}, "/ipam/replicas"),
        ({"ipam": {"replica": 2}}, "'replica' not allowed"),
        ({"ipamm": {}}, "'ipamm' not allowed"),
        ({"egress": {"port": 70000}}, "/egress/port"),
        ({"egress": {"enabled": "yes"}}, "/egress/enabled"),
        ({"coild": {"cooling": 30}}, "/coild/cooling"),
        ({"coild": {"cooling": "soon"}}, "/coild/cooling"),
        ({"coild": {"runDirectory": "run/coil"}}, "/coild/runDirectory"),
        ({"coild": {"hostAddress": "pod-ip"}}, "'link-local', 'node-ip'"),
        ({"coild": {"extraArgs": ["mtu=1400"]}}, "/coild/extraArgs/0"),
        ({"coild": {"resources": {"limit": {}}}}, "'limit' not allowed"),
        ({"coild": {"seLinuxOptions": {"types": "spc_t"}}}, "'types' not allowed"),
        ({"coild": {"maxUnavailable": "all"}}, "/coild/maxUnavailable"),
        ({"eip": {"enabled": True, "clusterCIDR": ["10.96.0.1"]}}, "/eip/clusterCIDR/0"),
        ({"eip": {"tunnelVNI": 2**24}}, "/eip/tunnelVNI"),
        ({"cni": {"confName": "coil.json"}}, "/cni/confName"),
        ({"cni": {"after": [{"name": "portmap"}]}}, "/cni/after/0"),
        ({"webhooks": {"certificates": "none"}}, "'self-managed', 'cert-manager'"),
        ({"image": {"digest": "abc"}}, "/image/digest"),
        ({"logs": {"level": "verbose"}}, "/logs/level"),
        ({"metrics": {"listenAddress": "::"}}, "/metrics/listenAddress"),
        # What the schema cannot say.
        ({"ipam": {"enabled": False}}, "cni.before must name the plugins that wire pods"),
        ({"ipam": {"enabled": False}, "egress": {"enabled": False}}, "nothing of Coil is left"),
        ({"cni": {"before": [{"type": "ptp"}]}}, "move them to cni.after"),
        ({"ipam": ENI}, "needs aws.clusterName"),
        ({"ipam": {**ENI, "enabled": False}, "cni": {"before": [{"type": "ptp"}]}}, "another plugin gives addresses"),
        ({"ipam": ENI, "aws": BLUE, "eip": {"enabled": True}}, "a VPC drops addresses that EC2 has not assigned"),
        ({"ipam": ENI, "aws": BLUE, "routeSync": {"enabled": True}}, "the VPC routes pods' addresses"),
        ({"ipam": ENI, "aws": BLUE, "coild": {"warmAddresses": 5}}, "set aws.targets.WARM_IP_TARGET"),
        ({"ipam": ENI, "aws": BLUE, "coild": {"hostAddress": "node-ip"}}, "gateway is link-local"),
        ({"ipam": {"addressSource": "eni"}}, "/ipam/addressSource"),
        ({"ipam": NEUTRON}, "needs raven.enabled"),
        ({"ipam": NEUTRON, "raven": ON}, "does not go with egress.enabled"),
        ({"ipam": NEUTRON, "raven": ON, "egress": OFF, "coild": {"warmAddresses": 5}}, "a port of its own"),
        ({"ipam": NEUTRON, "raven": ON, "egress": OFF, "coild": {"hostAddress": "node-ip"}}, "that of their subnet"),
        ({"ipam": NEUTRON, "raven": ON, "egress": OFF, "routeSync": ON}, "Neutron's routers route"),
        (
            {"ipam": NEUTRON | OFF, "raven": ON, "egress": ON, "cni": {"before": [{"type": "ptp"}]}},
            "another plugin gives addresses",
        ),
        ({"neutron": {"bindingDirectory": "bin"}}, "/neutron/bindingDirectory"),
        ({"neutron": {"openvswitch": {"socketDirectory": "run"}}}, "/neutron/openvswitch/socketDirectory"),
        ({"neutron": {"activeTimeout": 0}}, "/neutron/activeTimeout"),
        ({"aws": {"targets": {"WARM_IP_TARGET": -1}}}, "/aws/targets/WARM_IP_TARGET"),
        ({"aws": {"targets": {"WARM_IPS": 1}}}, "/aws/targets"),
        ({"aws": {"securityGroups": ["default"]}}, "/aws/securityGroups/0"),
        ({"aws": {"region": "somewhere"}}, "/aws/region"),
        ({"cni": {"after": [{"type": "coil"}]}}, "coil itself is put between them"),
        ({"raven": {"supernets": []}}, "/raven/supernets"),
        ({"raven": {"supernets": ["ten"]}}, "/raven/supernets/0"),
        ({"raven": {"clusterName": "a-name-of-13-c"}}, "/raven/clusterName"),
        ({"raven": {"cloudsSecret": ""}}, "/raven/cloudsSecret"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "serviceMonitor.enabled needs metrics.enabled"),
        (
            {"ipam": {"enabled": False}, "cni": {"before": [{"type": "ptp"}]}, "routeSync": {"enabled": True}},
            "routeSync.enabled needs ipam.enabled",
        ),
    ],
)
def test_a_mistake_is_called_by_its_name(values: dict[str, object], said: str) -> None:
    with pytest.raises(HelmError) as caught:
        render(values)
    assert said in str(caught.value)


@pytest.mark.parametrize("values", [EVERYTHING, ON_POD_NETWORK, CLEANUP], ids=["everything", "pod-network", "cleanup"])
def test_other_values_make_documents(values: dict[str, object]) -> None:
    documents = render(values)
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in documents]
    assert len(set(keys)) == len(keys)


def check_described(values: object, schema: dict[str, Any], path: str) -> None:
    schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    known = schema.get("properties")
    if not isinstance(values, dict) or known is None:
        return
    assert schema["additionalProperties"] is False, path
    assert set(values) <= set(known), path
    for name, value in values.items():
        check_described(value, known[name], f"{path}/{name}")


def test_the_schema_describes_every_value_and_no_other() -> None:
    check_described(DEFAULTS, SCHEMA, "")
    assert set(SCHEMA["properties"]) - set(DEFAULTS) == {"global"}


def test_every_value_of_a_profile_is_one_of_the_chart() -> None:
    for profile in profile_names():
        check_described(yaml.safe_load((PROFILES / f"{profile}.yaml").read_text()), SCHEMA, profile)
