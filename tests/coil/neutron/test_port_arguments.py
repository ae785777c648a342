"""What CNI_ARGS say of a port, and what the annotation of the same port adds."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import MacAddress
from coil.neutron.handoff import Handoff, PortAddress
from coil.neutron.port_arguments import (
    KEYS,
    PortArguments,
    PortArgumentsError,
    complete_port,
    missing_keys,
    parse_port_arguments,
)
from coil.neutron.resource import NetworkId, PortId, ProjectId

PORT = "a28c7404-7495-4557-b7fc-3e293508dbc6"
NETWORK = "0f6f4fd5-7f06-4c4b-8b0c-7b9d3b6a8a55"
PROJECT = "5e1f5a2c0d6b4b7e8d1c2a3b4c5d6e7f"
DRAWN = MacAddress("02:00:00:00:00:01")
PROPOSAL = {"PORT_UUID": PORT, "IPV4": "10.0.0.15/16", "GW": "10.0.0.1", "PORT_TYPE": "midonet"}
"""The four of the proposal."""
WHOLE = PROPOSAL | {
    "PORT_TYPE": "bridge",
    "MAC": "FA:16:3E:00:00:15",
    "NETWORK_UUID": NETWORK,
    "TENANT_UUID": PROJECT,
    "SEGMENTATION_ID": "17",
    "IPV6": "fd00::15/64",
    "GW6": "fd00::1",
}
V4 = PortAddress(ip_interface("10.0.0.15/16"), ip_address("10.0.0.1"))
V6 = PortAddress(ip_interface("fd00::15/64"), ip_address("fd00::1"))
NOTED = Handoff(
    port=PortId(PORT),
    pod_uid="uid",
    mac=MacAddress("fa:16:3e:00:00:99"),
    addresses=(PortAddress(ip_interface("10.9.0.9/24")), V6),
    network=NetworkId(NETWORK),
    project=ProjectId(PROJECT),
    type="openvswitch",
    mtu=1300,
    segmentation=23,
    nameservers=(ip_address("10.96.0.10"),),
    active=True,
)


def parse(**arguments: str) -> PortArguments:
    found = parse_port_arguments(arguments)
    assert found is not None
    return found


def complete(arguments: dict[str, str], noted: Handoff | None = None) -> Handoff:
    return complete_port(parse(**arguments), noted, pod_uid="uid", mac=DRAWN, mtu=1400)


def test_a_runtime_that_knows_no_port_says_nothing_of_one() -> None:
    assert parse_port_arguments({"K8S_POD_NAME": "web", "IPV4": ""}) is None


def test_the_four_of_the_proposal_are_enough_for_midonet() -> None:
    assert complete(PROPOSAL) == Handoff(
        port=PortId(PORT),
        pod_uid="uid",
        mac=DRAWN,
        addresses=(V4,),
        network=NetworkId(""),
        project=ProjectId(""),
        type="midonet",
        mtu=1400,
    )


def test_all_of_them_need_no_annotation() -> None:
    made = complete(WHOLE)
    assert (made.mac, made.network, made.project, made.segmentation) == ("fa:16:3e:00:00:15", NETWORK, PROJECT, 17)
    assert made.addresses == (V4, V6)
    assert missing_keys(parse(**WHOLE)) == ()


@pytest.mark.parametrize(
    ("lacking", "type_", "missing"),
    [
        ((), "bridge", ()),
        (("MAC",), "bridge", ("MAC",)),
        (("NETWORK_UUID", "SEGMENTATION_ID"), "bridge", ("NETWORK_UUID", "SEGMENTATION_ID")),
        (("TENANT_UUID",), "bridge", ()),
        (("SEGMENTATION_ID",), "openvswitch", ()),
        (("MAC", "NETWORK_UUID", "TENANT_UUID"), "openvswitch", ("MAC", "NETWORK_UUID", "TENANT_UUID")),
        (("MAC", "NETWORK_UUID", "TENANT_UUID", "SEGMENTATION_ID"), "midonet", ()),
        (("IPV4", "GW", "IPV6", "GW6"), "midonet", ("IPV4",)),
        (("IPV4", "GW"), "midonet", ()),
        (("PORT_TYPE",), "", ("PORT_TYPE",)),
    ],
)
def test_what_a_type_lacks_is_named(lacking: tuple[str, ...], type_: str, missing: tuple[str, ...]) -> None:
    arguments = {key: value for key, value in (WHOLE | {"PORT_TYPE": type_}).items() if key not in lacking}
    assert missing_keys(parse(**arguments)) == missing
    if missing:
        with pytest.raises(PortArgumentsError, match=", ".join(missing)):
            complete(arguments)


def test_the_annotation_of_the_same_port_adds_what_is_missing_and_no_more() -> None:
    arguments = PROPOSAL | {"PORT_TYPE": "bridge", "SEGMENTATION_ID": "17"}
    assert complete(arguments, NOTED) == replace(NOTED, type="bridge", addresses=(V4, V6), segmentation=17)
    assert complete({"PORT_UUID": PORT}, NOTED) == NOTED


def test_the_annotation_of_another_port_adds_nothing() -> None:
    other = replace(NOTED, port=PortId("b" * 32))
    assert complete(PROPOSAL, other) == complete(PROPOSAL)
    with pytest.raises(PortArgumentsError, match="PORT_TYPE"):
        complete({"PORT_UUID": PORT}, other)


def test_a_network_without_an_identifier_is_nothing_for_a_bridge() -> None:
    bare = replace(NOTED, segmentation=None, type="bridge")
    assert missing_keys(parse(PORT_UUID=PORT), bare) == ("SEGMENTATION_ID",)
    assert missing_keys(parse(PORT_UUID=PORT), replace(bare, type="openvswitch")) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"PORT_UUID": ""}, "no PORT_UUID"),
        ({"PORT_UUID": "../../bin/sh"}, "PORT_UUID in CNI_ARGS"),
        ({"PORT_TYPE": "../sh"}, "PORT_TYPE in CNI_ARGS"),
        ({"PORT_TYPE": "Bridge"}, "PORT_TYPE in CNI_ARGS"),
        ({"IPV4": "10.0.0.15"}, "IPV4 in CNI_ARGS.*prefix length"),
        ({"IPV4": "fd00::15/64", "GW": ""}, "IPV4 in CNI_ARGS.*IP version"),
        ({"IPV4": "ten/8"}, "IPV4 in CNI_ARGS"),
        ({"GW": "10.9.0.1"}, "IPV4 in CNI_ARGS.*gateway"),
        ({"GW": "fd00::1"}, "IPV4 in CNI_ARGS.*gateway"),
        ({"IPV4": ""}, "GW, but no IPV4"),
        ({"IPV6": ""}, "GW6, but no IPV6"),
        ({"MAC": "01:00:5e:00:00:01"}, "MAC in CNI_ARGS"),
        ({"NETWORK_UUID": "n"}, "NETWORK_UUID in CNI_ARGS"),
        ({"TENANT_UUID": "--help"}, "TENANT_UUID in CNI_ARGS"),
        ({"SEGMENTATION_ID": "x"}, "SEGMENTATION_ID in CNI_ARGS"),
        ({"SEGMENTATION_ID": "16777216"}, "SEGMENTATION_ID in CNI_ARGS"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_key(change: dict[str, str], problem: str) -> None:
    with pytest.raises(PortArgumentsError, match=problem):
        parse_port_arguments(WHOLE | change)


@given(st.dictionaries(st.sampled_from(KEYS), st.text(max_size=40)))
def test_any_text_is_read_or_refused(arguments: dict[str, str]) -> None:
    try:
        found = parse_port_arguments(arguments)
    except PortArgumentsError:
        return
    assert (found is None) == (not any(arguments.values()))
