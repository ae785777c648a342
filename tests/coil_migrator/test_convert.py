"""Manifests in the shapes that people have for egressgateway 0.6, and what is made of them."""

from typing import Any

import pytest
import yaml

from coil_migrator.check.cluster import Cluster
from coil_migrator.check.finding import Severity
from coil_migrator.check.manifest_object import with_manifests
from coil_migrator.check.report import check
from coil_migrator.convert import ConversionError, convert_manifests
from coil_migrator.manifest_reader import ManifestError, parse_manifests
from tests.coil_migrator.check.egressgateway_0_6 import API, GROUP, gateway, namespace, policy

UNTOUCHED = """\
# A pool, whose host bits nobody minds.
apiVersion: coil.cybozu.com/v2
kind: AddressPool
metadata: {name: pods}
spec: {subnets: [{ipv4: 10.2.0.1/16}]}
---
# Something else altogether.
- 1
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata: {name: plain}   # as it is
spec:
  clusterDefault: true
  ippools:
    ipv4: [203.0.113.1-203.0.113.4, 203.0.113.9]
    ipv6: [""]
    ipv4DefaultEIP: ""
  nodeSelector: {policy: AverageSelection, selector: {matchLabels: {egress: "true"}}}
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressPolicy
metadata: {name: web, namespace: shop}
spec:
  egressIP: {ipv4: "", ipv6: "", useNodeIP: false}
  appliedTo: {podSelector: {matchLabels: {app: web}}}
  destSubnet: [198.51.100.7/24, "fd00::92/128"]
  priority: 100
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressClusterInfo
metadata: {name: default}
spec: {extraCidr: [10.10.10.1]}
"""
CHANGED = """\
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata:
  name: odd
  finalizers: [egressgateway.spidernet.io/egressgateway, mine.example/kept]
  resourceVersion: "12"
  uid: 0b4f2a3e-0000-4000-8000-000000000001
  annotations: {"on": "1e3"}
spec:
  nodeSelector:
    policy: doing
    selector: {matchLabels: {kubernetes.io/os: linux}}
status: {nodeList: []}
"""


def convert(text: str, cluster: Cluster | None = None) -> str:
    return convert_manifests(parse_manifests(text, name="f"), cluster)


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def test_what_is_understood_stays_as_it_is_written() -> None:
    assert convert(UNTOUCHED) == UNTOUCHED
    assert convert("") == ""


def test_what_is_not_is_written_in_another_way() -> None:
    text = convert(f"{UNTOUCHED}---\n{CHANGED}---\n# The last.\na: b\n")
    assert text.startswith(UNTOUCHED)
    assert text.endswith("---\n# The last.\na: b\n")
    assert documents(text)[-2] == {
        "apiVersion": API,
        "kind": "EgressGateway",
        "metadata": {"name": "odd", "finalizers": ["mine.example/kept"], "annotations": {"on": "1e3"}},
        "spec": {
            "nodeSelector": {
                "policy": "doing",
                "selector": {"matchLabels": {"kubernetes.io/os": "linux"}},
            }
        },
    }
    assert convert(text) == text


def a_policy(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "shop"}
    applied = {"appliedTo": {"podSelector": {"matchLabels": {"app": "web"}}}}
    return {"apiVersion": API, "kind": "EgressPolicy", "metadata": metadata, "spec": {**applied, **spec}}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (
            {"appliedTo": {"podSelector": {"matchLabels": {"a": "b"}}, "podSubnet": ["172.29.16.0/24"]}},
            {"appliedTo": {"podSelector": {"matchLabels": {"a": "b"}}, "podSubnet": []}},
        ),
        (
            {"appliedTo": {"podSubnet": ["10.10.0.0/16", "10.10.0.0/16"]}},
            {"appliedTo": {"podSubnet": ["10.10.0.0/16"]}},
        ),
        ({"destSubnet": ["198.51.100.0/24", "198.51.100.0/24"]}, {"destSubnet": ["198.51.100.0/24"]}),
        ({"egressIP": {"allocatorPolicy": "best"}}, {"egressIP": {"allocatorPolicy": "default"}}),
        ({"egressIP": {"allocatorPolicy": ""}}, {"egressIP": {"allocatorPolicy": "default"}}),
        ({"egressIP": {"allocatorPolicy": "rr"}}, {"egressIP": {"allocatorPolicy": "rr"}}),
    ],
)
def test_policies(spec: dict[str, Any], wanted: dict[str, Any]) -> None:
    before = a_policy(**spec)
    assert documents(convert(yaml.safe_dump(before))) == [a_policy(**wanted)]
    of_list = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [before, {"a": 1}]}
    assert documents(convert(yaml.safe_dump(of_list))) == [{**of_list, "items": [a_policy(**wanted), {"a": 1}]}]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (a_policy(appliedTo={}), "EgressPolicy shop/a: spec.appliedTo: must have either"),
        (a_policy(appliedTo=None), "EgressPolicy shop/a: Expected `object`, got `null` - at `$.appliedTo`"),
        (a_policy(destSubnet=["198.51.100.1"]), "EgressPolicy shop/a: spec.destSubnet[0]: '198.51.100.1' is not"),
        (a_policy(egressIP={"ipv4": "fd00::1"}), "EgressPolicy shop/a: spec.egressIP.ipv4: 'fd00::1' is an IPv6"),
        ({**a_policy(), "apiVersion": f"{GROUP}/v1"}, f"EgressPolicy: only {API} can be converted"),
        ({**a_policy(), "metadata": []}, "EgressPolicy: Expected `object`"),
        ({**a_policy(), "spec": None}, "EgressPolicy shop/a: spec.appliedTo is missing"),
        (
            {**a_policy(nodeSelector={"selector": {}}), "kind": "EgressGateway"},
            "EgressGateway a: spec.nodeSelector.selector: must not be empty",
        ),
    ],
)
def test_what_breaks_a_rule_is_not_converted_and_nothing_else_either(document: dict[str, Any], words: str) -> None:
    text = yaml.safe_dump_all([a_policy(), document])
    with pytest.raises(ConversionError) as raised:
        convert(text)
    assert str(raised.value).startswith(f"f, document 2: {words}")


def test_all_reasons_are_told() -> None:
    with pytest.raises(ConversionError) as raised:
        convert(yaml.safe_dump_all([a_policy(appliedTo={}), a_policy(), a_policy(destSubnet=["x"])]))
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == ["f, document 1", "f, document 3"]


def test_files_are_joined_to_one_stream() -> None:
    parts = ("a: 1", "# b\n---\nb: 2\n", "{c: 3}")
    found = [manifest for text in parts for manifest in parse_manifests(text, name=text)]
    assert convert_manifests(found) == "a: 1\n# b\n---\nb: 2\n---\n{c: 3}"


# --- addresses of today

POOLS = {"ipv4": ["203.0.113.1-203.0.113.6"]}
DRAWN = {**POOLS, "ipv4DefaultEIP": "203.0.113.4"}
RR = {"allocatorPolicy": "rr"}


def running(*policies: Any) -> Cluster:
    spaces = (namespace("bank"), namespace("shop"))
    return Cluster(gateways=(gateway(ippools=DRAWN),), egress_policies=policies, namespaces=spaces)


def named(name: str, kind: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": "shop"} if kind == "EgressPolicy" else {})
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}


APPLIED = {"podSelector": {"matchLabels": {"app": "web"}}}
SELECTOR = {"selector": {"matchLabels": {"egress": "true"}}}
OFFICE = named("office", "EgressGateway", ippools=POOLS, nodeSelector=SELECTOR)
FREE = named("a", "EgressPolicy", egressGatewayName="office", egressIP=RR, appliedTo=APPLIED)
TODAY = policy("a", "shop", today="203.0.113.6", created=2, egressIP=RR)
"""What FREE has."""


def test_addresses_that_would_change_are_pinned() -> None:
    """The default one is kept by the gateway, and is shared only as such."""
    plain = named("b", "EgressPolicy", egressGatewayName="office", appliedTo=APPLIED)
    new = named("c", "EgressPolicy", egressGatewayName="office", egressIP=RR, appliedTo=APPLIED)
    cluster = running(TODAY, policy("b", "shop", today="203.0.113.4"))
    text = yaml.safe_dump_all([OFFICE, FREE, plain, new])
    converted = documents(convert(text, cluster))
    assert converted == [
        {**OFFICE, "spec": {**OFFICE["spec"], "ippools": DRAWN}},
        {**FREE, "spec": {**FREE["spec"], "egressIP": {**RR, "ipv4": "203.0.113.6"}}},
        plain,
        new,
    ]
    assert documents(convert(text)) == [OFFICE, FREE, plain, new]


def test_an_address_that_the_policy_would_not_get_is_not_pinned() -> None:
    stranger = policy("x", "bank", egressIP={"ipv4": "203.0.113.6"})
    own = {**OFFICE, "spec": {**OFFICE["spec"], "sharing": "Namespace"}}
    with pytest.raises(ConversionError, match=r"EgressPolicy shop/a: cannot keep 203.0.113.6: .* another namespace"):
        convert(yaml.safe_dump_all([own, FREE]), running(TODAY, stranger))


def test_the_address_of_a_cluster_policy_is_pinned_too() -> None:
    wide = named("w", "EgressClusterPolicy", egressGatewayName="office", egressIP=RR, appliedTo=APPLIED)
    [converted] = documents(convert(yaml.safe_dump(wide), running(policy("w", today="203.0.113.6", egressIP=RR))))
    assert converted["spec"]["egressIP"] == {**RR, "ipv4": "203.0.113.6"}


def test_nothing_is_left_to_tell_of_what_is_converted() -> None:
    cluster = running(TODAY)
    manifests = parse_manifests(convert(yaml.safe_dump_all([OFFICE, FREE]), cluster), name="f")
    assert [each for each in check(with_manifests(cluster, manifests)) if each.subject == "EgressPolicy shop/a"] == []


# --- manifests in a check


def test_manifests_are_checked_as_if_they_were_applied() -> None:
    spoilt = parse_manifests(yaml.safe_dump({**FREE, "spec": {**FREE["spec"], "appliedTo": {}}}), name="f")
    cluster = running(TODAY)

    def mended(found: Cluster) -> list[str]:
        return [each.subject for each in check(found) if each.severity is Severity.MUST_MEND]

    assert mended(cluster) == []
    assert (
        mended(with_manifests(cluster, spoilt)) == mended(with_manifests(Cluster(), spoilt)) == ["EgressPolicy shop/a"]
    )


def test_manifests_of_both_projects() -> None:
    text = """
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}
- {apiVersion: coil.cybozu.com/v2, kind: AddressPool, metadata: {name: pods}, spec: {subnets: [{ipv4: 10.2.0.0/33}]}}
- {apiVersion: coil.cybozu.com/v2, kind: Egress, metadata: {name: nat}, spec: {destinations: [10.0.0.0/33]}}
- {apiVersion: egressgateway.spidernet.io/v1beta1, kind: EgressPolicy, metadata: {name: a}, spec: {appliedTo: {}}}
- apiVersion: egressgateway.spidernet.io/v1beta1
  kind: EgressClusterPolicy
  metadata: {name: a}
  spec: {appliedTo: {}}
- {apiVersion: egressgateway.spidernet.io/v1beta1, kind: EgressClusterInfo, metadata: {name: default}, spec: {}}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: coild, namespace: kube-system}
  spec: {template: {spec: {containers: [{name: coild, command: [coild], args: [--compat-calico]}]}}}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: agent, namespace: net, labels: {app.kubernetes.io/name: egressgateway}}
  spec: {template: {spec: {volumes: [{configMap: {name: eg}}], containers: []}}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: eg, namespace: net}, data: {conf.yml: "vxlan: {port: many}"}}
"""
    found = check(with_manifests(Cluster(), parse_manifests(text, name="f")))
    assert [each.subject for each in found if each.severity is Severity.MUST_MEND] == [
        "ConfigMap net/eg",
        "EgressPolicy default/a",
        "EgressClusterPolicy a",
        "AddressPool pods",
        "Egress default/nat",
    ]
    assert any(each.values == {"coild": {"compatCalico": True}} for each in found)


def test_a_manifest_that_is_none_of_its_kind() -> None:
    text = "{apiVersion: coil.cybozu.com/v2, kind: AddressPool, metadata: {name: 5}}"
    with pytest.raises(ManifestError, match=r"f, document 1: AddressPool: Expected `str`, got `int`"):
        with_manifests(Cluster(), parse_manifests(text, name="f"))
