"""Slices: each endpoint once, never too many, as few writes as the change needs."""

import itertools
import random
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.builtin import Pod, PodIP, PodSpec, PodStatus
from coil.crd.egress_gateway_policy import EgressEndpoint, EgressEndpointSlice, EgressGatewayPolicy
from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import LABEL_POLICY
from coil.eip.slice_packing import Packing, endpoint_of, pack

POLICY = EgressGatewayPolicy(metadata=ObjectMeta(name="web", namespace="ns", uid="u1"))


class Slices:
    """What the API server has, and what was written."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.stored: dict[str, EgressEndpointSlice] = {}
        self._names = (f"web-{number:05}" for number in itertools.count())

    def pack(self, endpoints: Iterable[EgressEndpoint]) -> Packing:
        wanted = list(endpoints)
        packing = pack(
            POLICY, wanted, list(self.stored.values()), limit=self.limit, fresh_name=lambda: next(self._names)
        )
        for one in (*packing.creates, *packing.updates):
            assert (one.metadata.name in self.stored) == (one in packing.updates)
            self.stored[one.metadata.name] = one
        for one in packing.deletes:
            del self.stored[one.metadata.name]
        found = [endpoint for one in self.stored.values() for endpoint in one.endpoints]
        assert sorted(found, key=lambda one: one.pod_name) == sorted(wanted, key=lambda one: one.pod_name)
        for one in self.stored.values():
            assert 0 < len(one.endpoints) <= self.limit
            assert [endpoint.pod_name for endpoint in one.endpoints] == sorted(e.pod_name for e in one.endpoints)
            assert one.metadata.labels[LABEL_POLICY] == "web"
            assert [owner.uid for owner in one.metadata.owner_references if owner.controller] == ["u1"]
        again = pack(POLICY, wanted, list(self.stored.values()), limit=self.limit, fresh_name=lambda: "never")
        assert again.writes == 0
        return packing

    def touched(self, names: set[str]) -> int:
        """How many slices have one of these endpoints."""
        return sum(any(endpoint.pod_name in names for endpoint in one.endpoints) for one in self.stored.values())


def pods(numbers: Iterable[int], uuid: str = "u") -> list[EgressEndpoint]:
    return [EgressEndpoint(pod_name=f"pod-{number:05}", ipv4_list=("10.0.0.1",), uuid=uuid) for number in numbers]


def test_a_thousand_new_pods_are_ten_writes() -> None:
    slices = Slices(100)
    assert slices.pack(pods(range(1000))).writes == 10
    assert slices.pack(pods(range(1001))).writes == 1
    assert slices.pack(pods(range(1050))).writes == 1
    assert slices.pack(pods(range(1100))).writes == 1
    assert len(slices.stored) == 11


def test_pods_that_are_replaced_by_others_cost_one_write_per_slice_that_they_were_in() -> None:
    slices = Slices(100)
    slices.pack(pods(range(1000)))
    assert slices.pack(pods(range(100, 1100))).writes == 1
    assert slices.pack(pods(range(1100, 2100))).writes == 10


def test_a_pod_of_the_same_name_takes_the_place_of_the_old_one() -> None:
    slices = Slices(100)
    slices.pack(pods(range(300)))
    packing = slices.pack([*pods(range(5), uuid="new"), *pods(range(5, 300))])
    assert (len(packing.updates), packing.writes) == (1, 1)


def test_slices_that_run_empty_are_put_together() -> None:
    slices = Slices(100)
    slices.pack(pods(range(1000)))
    dice = random.Random(3)
    left = list(range(1000))
    while len(left) > 50:
        dice.shuffle(left)
        left = left[:-25]
        slices.pack(pods(left))
        assert len(slices.stored) <= 4 * len(left) / 100 + 1
    count = len(slices.stored)
    assert len(slices.pack([]).deletes) == count
    assert not slices.stored


def test_a_smaller_limit_splits_what_is_too_large() -> None:
    slices = Slices(100)
    slices.pack(pods(range(250)))
    slices.limit = 40
    slices.pack(pods(range(250)))


def test_slices_of_an_earlier_policy_are_deleted_and_none_is_taken_for_them() -> None:
    owner = OwnerReference(api_version="v", kind="EgressGatewayPolicy", name="web", uid="u0", controller=True)
    old = EgressEndpointSlice(
        metadata=ObjectMeta(name="web-00000", namespace="ns", labels={LABEL_POLICY: "web"}, owner_references=(owner,)),
        endpoints=tuple(pods(range(3))),
    )
    names = iter(["web-00000", "web-00001"])
    packing = pack(POLICY, pods(range(3)), [old], limit=100, fresh_name=lambda: next(names))
    assert packing.deletes == (old,)
    assert [one.metadata.name for one in packing.creates] == ["web-00001"]


def test_a_label_that_was_taken_off_comes_back() -> None:
    slices = Slices(100)
    slices.pack(pods(range(3)))
    ((name, one),) = slices.stored.items()
    bare = msgspec.structs.replace(one.metadata, labels={"other": "kept"})
    slices.stored[name] = msgspec.structs.replace(one, metadata=bare)
    assert slices.pack(pods(range(3))).writes == 1
    assert slices.stored[name].metadata.labels == {"other": "kept", LABEL_POLICY: "web"}


def test_a_slice_that_is_being_deleted_counts_for_nothing() -> None:
    slices = Slices(100)
    slices.pack(pods(range(3)))
    ((_, one),) = slices.stored.items()
    going = msgspec.structs.replace(
        one, metadata=msgspec.json.decode(b'{"deletionTimestamp":"2026-01-01T00:00:00Z"}', type=ObjectMeta)
    )
    going = msgspec.structs.replace(
        going, metadata=msgspec.structs.replace(going.metadata, owner_references=one.metadata.owner_references)
    )
    packing = pack(POLICY, pods(range(3)), [going], limit=100, fresh_name=lambda: "web-1")
    assert (len(packing.creates), packing.writes) == (1, 1)


STEPS = st.lists(st.tuples(st.sets(st.integers(0, 60)), st.sampled_from(["u", "v"])), max_size=8)


@given(st.integers(1, 9), STEPS)
def test_any_history(limit: int, steps: Sequence[tuple[set[int], str]]) -> None:
    slices = Slices(limit)
    present: dict[str, EgressEndpoint] = {}
    for numbers, uuid in steps:
        wanted = {endpoint.pod_name: endpoint for endpoint in pods(sorted(numbers), uuid)}
        lost = {name for name, endpoint in present.items() if wanted.get(name) != endpoint}
        added = len(wanted.keys() - present.keys())
        touched = slices.touched(lost)
        packing = slices.pack(wanted.values())
        # Each slice that loses some may be emptied into one more.
        assert packing.writes <= (touched * 2 if limit >= 4 else touched) + -(-added // limit)
        if not lost:
            assert packing.writes <= -(-added // limit)
        assert sum(len(one.endpoints) <= limit // 4 for one in slices.stored.values()) <= 1
        present = wanted


@pytest.mark.parametrize(
    ("spec", "status", "wanted"),
    [
        (PodSpec(node_name="n"), PodStatus(phase="Running", pod_ips=(PodIP(ip="10.0.0.9"), PodIP(ip="fd00::9"))), True),
        (PodSpec(node_name="n"), PodStatus(phase="Pending", pod_ips=(PodIP(ip="10.0.0.9"), PodIP(ip="fd00::9"))), True),
        (PodSpec(host_network=True), PodStatus(phase="Running", pod_ips=(PodIP(ip="10.0.0.9"),)), False),
        (PodSpec(), PodStatus(phase="Succeeded", pod_ips=(PodIP(ip="10.0.0.9"),)), False),
        (PodSpec(), PodStatus(phase="Failed", pod_ips=(PodIP(ip="10.0.0.9"),)), False),
        (PodSpec(), PodStatus(phase="Pending"), False),
    ],
)
def test_which_pods_are_endpoints(spec: PodSpec, status: PodStatus, wanted: bool) -> None:
    endpoint = EgressEndpoint(pod_name="p", ipv4_list=("10.0.0.9",), ipv6_list=("fd00::9",), node_name="n", uuid="u")
    found = endpoint_of(Pod(metadata=ObjectMeta(name="p", uid="u"), spec=spec, status=status))
    assert found == (endpoint if wanted else None)
