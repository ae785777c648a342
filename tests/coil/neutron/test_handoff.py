"""The annotation by which a node is told of a pod's port."""

import json
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import MacAddress
from coil.neutron.handoff import Handoff, HandoffError, PortAddress, parse_binding_type, parse_handoff, render_handoff
from coil.neutron.port_rules import make_rule_set, parse_rule
from coil.neutron.resource import NetworkId, PortId, ProjectId

UID = "6b7e4c1e-3d0a-4f57-8b8e-2f0c7e1d9a41"
PORT = "a28c7404-7495-4557-b7fc-3e293508dbc6"
HANDOFF = Handoff(
    port=PortId(PORT),
    pod_uid=UID,
    mac=MacAddress("fa:16:3e:6a:5a:cb"),
    addresses=(
        PortAddress(ip_interface("10.8.1.68/16"), ip_address("10.8.0.1")),
        PortAddress(ip_interface("fd00:8::44/64"), ip_address("fd00:8::1")),
    ),
    network=NetworkId("71fcd299-d602-4fe7-9d65-252168c0cb4f"),
    project=ProjectId("5e1f5a2c0d6b4b7e8d1c2a3b4c5d6e7f"),
    type="bridge",
    mtu=1450,
    segmentation=2622,
    nameservers=(ip_address("10.96.0.10"),),
)


@pytest.mark.parametrize(
    "handoff",
    [
        HANDOFF,
        replace(HANDOFF, segmentation=None, nameservers=()),
        replace(HANDOFF, active=True),
        replace(HANDOFF, rules=()),
        replace(HANDOFF, rules=make_rule_set([parse_rule("ingress 10.8.0.0/16 tcp 80-90"), parse_rule("egress ::/0")])),
        replace(HANDOFF, addresses=(PortAddress(ip_interface("fd00:8::44/64")),), project=ProjectId("")),
    ],
)
def test_what_was_written_is_read(handoff: Handoff) -> None:
    text = render_handoff(handoff)
    assert "\n" not in text
    assert parse_handoff(text, pod_uid=UID) == handoff


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(render_handoff(HANDOFF)), **changes})


def test_what_a_later_version_adds_is_skipped() -> None:
    assert parse_handoff(changed(later=True, extra={"a": [1]}), pod_uid=UID) == HANDOFF


def test_another_pods_port_is_refused() -> None:
    with pytest.raises(HandoffError, match="that of the pod with UID"):
        parse_handoff(render_handoff(HANDOFF), pod_uid=UID.replace("6", "7"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be read"),
        ("null", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "version 0"),
        (changed(version=2), "version 2"),
        (changed(version="1"), "cannot be read"),
        (changed(port_id="../../bin/sh"), "no UUID"),
        (changed(network_id=""), "no UUID"),
        (changed(type="../bridge"), "type"),
        (changed(type="Bridge"), "type"),
        (changed(type=""), "type"),
        (changed(type="a" * 33), "type"),
        (changed(mac="fa:16:3e:6a:5a"), "hardware address"),
        (changed(mac="01:00:5e:00:00:01"), "hardware address"),
        (changed(ips=[]), "0 addresses"),
        (changed(ips=[{"ip": "10.8.1.68"}]), "no prefix length"),
        (changed(ips=[{"ip": "10.8.1.68/16", "gateway": "10.9.0.1"}]), "cannot be the gateway"),
        (changed(ips=[{"ip": "10.8.1.68/16", "gateway": "fd00::1"}]), "cannot be the gateway"),
        (changed(ips=[{"ip": "10.8.1.68/16", "gateway": "10.8.1.68"}]), "cannot be the gateway"),
        (changed(ips=[{"ip": "10.8.1.68/16"}] * 17), "17 addresses"),
        (changed(mtu=0), "no MTU"),
        (changed(mtu=65536), "no MTU"),
        (changed(segmentation=1 << 24), "VXLAN"),
        (changed(nameservers=["nobody"]), "cannot be read"),
        (changed(pod_uid=None), "cannot be read"),
        ("[" * 100_000, "more than"),
        ("[" * 10_000, "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(HandoffError, match=reason):
        parse_handoff(text, pod_uid=UID)


@given(st.text())
def test_any_text_is_a_handoff_or_refused(text: str) -> None:
    with pytest.raises(HandoffError):
        parse_handoff(text, pod_uid=UID)


@given(st.text())
def test_a_type_is_never_a_path(text: str) -> None:
    try:
        found = parse_binding_type(text)
    except HandoffError:
        return
    assert found == text
    assert not set(text) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
