"""Who is a client of an Egress, and who is not."""

from collections.abc import Mapping
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.builtin import Pod, PodIP, PodSpec, PodStatus
from coil.crd.meta import ObjectMeta
from coil.egress.annotation import EgressRef, parse_egress_annotations
from coil.egress.client_pod import client_addresses, is_client

EGRESS = EgressRef("internet", "nat")
KEY = "egress.coil.cybozu.com/internet"
STRANGE = "10.1.2 0.0.0.0 127.0.0.1 224.0.0.1 169.254.1.1 :: ::1 ff02::1 fe80::1 fd00::1%eth0 ::ffff:10.1.2.3 "
NAMES = st.sampled_from(["nat", "nat2", " nat ", "na", "t", "", ",", "nat,", "Nat", "n at"])


def make_pod(
    annotations: Mapping[str, str], *addresses: str, phase: str = "Running", host_network: bool = False
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="pod", namespace="default", annotations=dict(annotations)),
        spec=PodSpec(host_network=host_network),
        status=PodStatus(phase=phase, pod_ips=tuple(PodIP(ip=address) for address in addresses)),
    )


@pytest.mark.parametrize("value", ["nat", "other,nat", " other , nat "])
@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Unknown"])
def test_an_annotated_pod_is_a_client(value: str, phase: str) -> None:
    assert is_client(make_pod({KEY: value}, phase=phase), EGRESS)


@pytest.mark.parametrize(
    "pod",
    [
        make_pod({}),
        make_pod({KEY: "other"}),
        make_pod({KEY: ""}),
        make_pod({KEY: "nat2"}),
        make_pod({"egress.coil.cybozu.com/domestic": "nat"}),
        make_pod({KEY: "nat"}, phase="Succeeded"),
        make_pod({KEY: "nat"}, phase="Failed"),
        make_pod({KEY: "nat"}, host_network=True),
    ],
)
def test_others_are_none(pod: Pod) -> None:
    assert not is_client(pod, EGRESS)


@given(st.lists(NAMES).map(",".join))
def test_both_ends_read_the_annotation_alike(value: str) -> None:
    named = parse_egress_annotations({KEY: value}).references
    assert is_client(make_pod({KEY: value}), EGRESS) == (EGRESS in named)


def test_addresses() -> None:
    assert client_addresses(make_pod({})) == frozenset()
    assert client_addresses(make_pod({}, "10.1.2.3", "fd00::1")) == {ip_address("10.1.2.3"), ip_address("fd00::1")}


@pytest.mark.parametrize("text", STRANGE.split(" "))
def test_one_that_no_pod_can_have_does_not_stop_the_other(text: str) -> None:
    assert client_addresses(make_pod({}, text, "10.1.2.3")) == {ip_address("10.1.2.3")}
