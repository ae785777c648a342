"""The judge of the soak: no fault in a world that agrees, and each disagreement named."""

from dataclasses import replace
from ipaddress import ip_network

import pytest

from integration.soak.observation import Kernel, Ledger, Lookup, Observation, Pod, Veth
from integration.soak.verdict import Suspicion, find_lasting_faults, find_passing_faults, find_suspicions
from tests.integration_soak.scene import (
    BLOCK,
    KERNEL,
    OBJECTS,
    POD,
    POOL,
    RULES,
    WORLD,
    with_block,
    with_kernel,
    with_objects,
)

TWIN = replace(POD, node="node-1", container_id="decade", host_link="veth2")


def test_a_world_that_agrees_has_no_fault() -> None:
    assert find_lasting_faults(WORLD, [POD]) == []
    assert find_passing_faults(OBJECTS) == []


def test_an_empty_world_has_no_fault() -> None:
    empty = Observation(objects=replace(OBJECTS, pools=(), blocks=()), kernels={"node-0": Kernel(lookups=RULES)})
    assert find_lasting_faults(empty, []) == []


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (with_kernel(veths=()), "node-0: links missing: COIL:default:c0ffee:eth0 veth1"),
        (
            with_kernel(veths=(*KERNEL.veths, Veth("veth9", "COIL:default:beef:eth0"))),
            "node-0: links left over: COIL:default:beef:eth0 veth9",
        ),
        (
            with_kernel(veths=(Veth("veth1", "COIL:other:c0ffee:eth0"),)),
            "node-0: links missing: COIL:default:c0ffee:eth0 veth1",
        ),
        (with_kernel(veths=(*KERNEL.veths, Veth("veth9", ""))), "node-0: an orphan: veth9, alias ''"),
        (with_kernel(veths=(Veth("veth1", POD.alias, "1668245868"),)), "half made: veth1, of the group 1668245868"),
        (with_kernel(veths=(Veth("veth1", POD.alias, "default"),)), "half made: veth1, of the group default"),
        (with_kernel(pod_routes=KERNEL.pod_routes[:1]), "node-0: routes to pods missing: fd00::5/128 veth1"),
        (
            with_kernel(pod_routes=(*KERNEL.pod_routes, ("10.0.0.5/32", "veth1"))),
            "node-0: routes to pods left over: 10.0.0.5/32 veth1",
        ),
        (with_kernel(exports=KERNEL.exports[1:]), "node-0: exported routes missing: 10.0.0.4/30"),
        (with_kernel(exports=(*KERNEL.exports, "10.0.0.0/30")), "node-0: exported routes left over: 10.0.0.0/30"),
        (with_kernel(lookups=RULES[:2]), "node-0: 0 rules 2000 look up 116 for IPv6"),
        (with_kernel(lookups=(*RULES, RULES[1])), "node-0: 2 rules 2000 look up 116 for IPv4"),
        (with_kernel(lookups=(*RULES, Lookup(4, 1999, "116"))), "node-0: a rule of priority 1999 looks up 116"),
        (with_objects(requests=("req-node-0-1",)), "request req-node-0-1 is left"),
        (with_objects(blocks=()), "the addresses of c0ffee on node-0 are in the blocks []"),
        (with_objects(nodes=frozenset()), "block default-1 is of 'node-0', which is no node"),
        (with_block(node="node-1"), "c0ffee on node-0 has addresses of default-1, a block of node-1"),
        (with_block(leaving=True), "block default-1 is being deleted, and stays"),
        (with_block(finalized=False), "block default-1 has no finalizer"),
        (with_block(owner="another-uid"), "block default-1 is not owned by its pool default"),
        (with_block(pool="other"), "block default-1 is of the pool 'other', which does not exist"),
        (with_block(name="strange-1"), "block strange-1 is not named after its pool default"),
        (
            with_block(networks=(ip_network("10.0.0.0/29"), ip_network("fd00::4/126"))),
            "block default-1 has 10.0.0.0/29, and its pool has blocks of 2^2 addresses",
        ),
        (
            with_block(networks=(ip_network("10.0.9.4/30"), ip_network("fd00::4/126"))),
            "block default-1 has 10.0.9.4/30, which is not of its pool",
        ),
        (
            with_objects(blocks=(BLOCK, replace(BLOCK, name="default-2", request="request-2"))),
            "blocks default-1 and default-2 overlap",
        ),
        (
            with_objects(blocks=(BLOCK, replace(BLOCK, name="default-0"))),
            "2 blocks answer the request 'request-1'",
        ),
        (
            with_objects(pools=(replace(POOL, status={"blocks": {"total": 4, "used": 0}}),)),
            "pool default says blocks: {'total': 4, 'used': 0}, and it is {'total': 4, 'used': 1}",
        ),
        (
            replace(WORLD, ledgers={"node-0": Ledger(holders={}, blocks=frozenset({"default-1"}))}),
            "node-0: in the ledger missing: c0ffee 10.0.0.5 fd00::5",
        ),
        (
            replace(WORLD, ledgers={"node-0": Ledger(holders={"c0ffee": POD.addresses}, blocks=frozenset())}),
            "node-0: the ledger's blocks missing: default-1",
        ),
    ],
)
def test_what_disagrees_is_named(world: Observation, said: str) -> None:
    assert any(said in fault for fault in find_lasting_faults(world, [POD])), find_lasting_faults(world, [POD])


def test_a_block_without_a_pod_is_a_fault_at_rest() -> None:
    world = replace(with_kernel(veths=(), pod_routes=()), ledgers={})
    assert find_lasting_faults(world, []) == ["block default-1 has no pod"]


def test_two_pods_with_one_address_are_a_fault() -> None:
    assert "10.0.0.5 is held by c0ffee on node-0 and by decade on node-1" in find_lasting_faults(WORLD, [POD, TWIN])


@pytest.mark.parametrize("addresses", [{"10.0.0.5", "fd00::6"}, {"10.0.0.5"}])
def test_the_addresses_of_a_pod_are_one_slot_of_its_block(addresses: set[str]) -> None:
    pod = replace(POD, addresses=frozenset(addresses))
    assert any("not one slot" in fault for fault in find_lasting_faults(WORLD, [pod]))


def test_a_pod_that_is_not_known_leaves_everything_over() -> None:
    faults = find_lasting_faults(WORLD, [])
    assert len(faults) == 4  # link, routes, ledger, block
    assert all("left over" in fault or "has no pod" in fault for fault in faults)


def test_a_pod_of_another_node_is_looked_for_there() -> None:
    moved: Pod = replace(POD, node="node-1")
    assert any(fault.startswith("node-1: links missing") for fault in find_lasting_faults(WORLD, [moved]))


def test_an_address_that_two_nodes_route_is_suspicious() -> None:
    other = Kernel(veths=(Veth("veth2", TWIN.alias),), pod_routes=(("10.0.0.5/32", "veth2"),))
    assert find_suspicions({"node-0": KERNEL, "node-1": other}) == [Suspicion("10.0.0.5/32", ("node-0", "node-1"))]
    assert find_suspicions({"node-0": KERNEL, "node-1": Kernel()}) == []


def test_in_motion_a_block_may_be_leaving_and_without_a_pod() -> None:
    leaving = replace(BLOCK, leaving=True, finalized=False, node="gone")
    assert find_passing_faults(replace(OBJECTS, blocks=(leaving,), requests=("req-node-0-1",))) == []
