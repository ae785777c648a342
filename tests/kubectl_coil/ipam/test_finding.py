"""Each kind of finding, made on purpose in what a cluster and its nodes would tell, and a cluster without one."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

import msgspec
import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import PODS
from coil.page.node_document import (
    AddressCounts,
    AddressDocument,
    AddressState,
    BlockDocument,
    BlockUse,
    NodeDocument,
    PoolDocument,
    RouteTablesDocument,
)
from coil.page.node_dump import NamespaceDump, RouteDump
from kubectl_coil.ipam.finding import REMEDIES, Evidence, Finding, FindingKind, NodeEvidence, compare
from tests.kubectl_coil.memory_reader import NOW

TABLES = RouteTablesDocument(pods=116, export=119, protocol=30)
Document = dict[str, Any]


def route(destination: str, table: int, *, protocol: int = 30) -> RouteDump:
    return RouteDump(
        family=10 if ":" in destination else 2,
        table=table,
        destination=destination,
        type="unicast",
        protocol=protocol,
        scope=0,
        metric=0,
        source="",
        mtu=None,
        hops=(),
    )


class Town:
    """Two nodes with a block and a pod each, dual-stack, of which everybody tells the same. Tests change it."""

    def __init__(self) -> None:
        self.pools: list[Document] = [
            {
                "metadata": {"name": "default"},
                "spec": {"subnets": [{"ipv4": "10.0.0.0/16", "ipv6": "fd00::/112"}]},
            }
        ]
        self.blocks = [self.block("default-0", "n0", 0), self.block("default-1", "n1", 1)]
        self.nodes = {"n0", "n1"}
        self.pods = [self.pod("web-0", "n0", "10.0.0.5", "fd00::5"), self.pod("web-1", "n1", "10.0.1.5", "fd00::105")]
        self.uses = {"n0": [self.use(0, 5, "web-0")], "n1": [self.use(1, 5, "web-1")]}
        self.use_of_block = BlockUse.OPEN
        self.tables: RouteTablesDocument | None = TABLES
        self.routes = {
            node: [
                *(route(f"10.0.{number}.5/32", 116), route(f"fd00::{number}05/128", 116)),
                *(route(f"10.0.{number}.0/24", 119), route(f"fd00::{number}00/120", 119)),
                # Those of others, and of the kernel.
                *(route("10.0.7.7/32", 116, protocol=3), route("10.9.0.0/16", 254)),
            ]
            for number, node in enumerate(("n0", "n1"))
        }
        self.silent: set[str] = set()
        """Nodes that are not judged."""

    @staticmethod
    def block(name: str, node: str, number: int, *, pool: str = "default") -> Document:
        labels = {"coil.cybozu.com/pool": pool, "coil.cybozu.com/node": node}
        networks = {"ipv4": f"10.0.{number}.0/24", "ipv6": f"fd00::{number}00/120"}
        return {"metadata": {"name": name, "labels": labels}, "index": number, **networks}

    @staticmethod
    def pod(name: str, node: str, *addresses: str) -> Document:
        status = {"phase": "Running", "podIPs": [{"ip": address} for address in addresses]}
        return {"metadata": {"name": name, "namespace": "shop"}, "spec": {"nodeName": node}, "status": status}

    @staticmethod
    def use(number: int, slot: int, pod: str, state: AddressState = AddressState.ALLOCATED) -> AddressDocument:
        return AddressDocument(
            ipv4=IPv4Address(f"10.0.{number}.{slot}"),
            ipv6=IPv6Address(f"fd00::{number}{slot:02x}"),
            slot=slot,
            state=state,
            namespace="shop",
            pod=pod,
            container=f"container-of-{pod}",
        )

    def ledger(self, node: str, number: int) -> NodeDocument:
        block = BlockDocument(
            name=f"default-{number}",
            index=number,
            ipv4=IPv4Network(f"10.0.{number}.0/24"),
            ipv6=IPv6Network(f"fd00::{number}00/120"),
            use=self.use_of_block,
            addresses=AddressCounts(),
            used=tuple(self.uses[node]),
        )
        pool = PoolDocument(name="default", addresses=AddressCounts(), blocks=(block,))
        return NodeDocument(node=node, at=NOW, addresses=AddressCounts(), pools=(pool,), tables=self.tables)

    def findings(self) -> list[Finding]:
        ledgers = {
            node: NodeEvidence(self.ledger(node, number), NamespaceDump(path="", routes=tuple(self.routes[node])))
            for number, node in enumerate(("n0", "n1"))
            if node not in self.silent
        }
        return compare(
            Evidence(
                pools=[msgspec.convert(each, ADDRESS_POOLS.type) for each in self.pools],
                blocks=[msgspec.convert(each, ADDRESS_BLOCKS.type) for each in self.blocks],
                nodes=self.nodes,
                pods=[msgspec.convert(each, PODS.type) for each in self.pods],
                ledgers=ledgers,
            )
        )

    def kinds(self) -> set[tuple[FindingKind, str]]:
        return {(finding.kind, finding.subject) for finding in self.findings()}


@pytest.fixture
def town() -> Town:
    return Town()


def test_where_all_agree_nothing_is_found(town: Town) -> None:
    town.uses["n0"].append(town.use(0, 9, "gone", AddressState.COOLING))
    town.pods.append(town.pod("of-another-network", "n0", "192.168.3.4", "not an address"))
    assert town.findings() == []


@pytest.mark.parametrize("routed", [True, False])
def test_a_pod_that_starts_does_not_show_its_addresses_yet(town: Town, routed: bool) -> None:
    """For as long as it takes to start its containers."""
    town.uses["n0"].append(town.use(0, 9, "new"))
    if routed:
        town.routes["n0"] += [route("10.0.0.9/32", 116), route("fd00::9/128", 116)]
    kind = FindingKind.POD_GONE if routed else FindingKind.LEAKED
    assert {found for found, _ in town.kinds()} == {kind}, "where the API server does not know the pod"
    town.pods.append(town.pod("new", "n1"))
    assert {found for found, _ in town.kinds()} == {kind}, "where the pod is of another node"
    town.pods.append(town.pod("new", "n0"))
    assert town.kinds() == set()


def test_every_kind_has_a_remedy() -> None:
    assert set(REMEDIES) == set(FindingKind)


def two_pods(town: Town) -> None:
    town.pods.append(town.pod("twin", "n0", "10.0.0.5"))


def two_ledgers(town: Town) -> None:
    town.uses["n1"].append(town.use(0, 5, "web-0"))


def two_blocks(town: Town) -> None:
    town.blocks[1]["ipv4"] = "10.0.0.128/25"
    town.silent = {"n0", "n1"}


def leaked(town: Town) -> None:
    town.uses["n0"].append(town.use(0, 9, "old"))


def pod_gone(town: Town) -> None:
    del town.pods[0]


def not_in_ledger(town: Town) -> None:
    town.uses["n0"] = []
    town.routes["n0"] = town.routes["n0"][2:]


def no_pool(town: Town) -> None:
    town.blocks[0] = town.block("default-0", "n0", 0, pool="other")


def another_pools_network(town: Town) -> None:
    town.pools[0]["spec"]["subnets"] = [{"ipv4": "10.0.0.0/24", "ipv6": "fd00::/112"}]
    town.silent = {"n0", "n1"}


def another_nodes_address(town: Town) -> None:
    town.pods[0] = town.pod("web-0", "n0", "10.0.1.9")
    town.silent = {"n0", "n1"}


def absent_node(town: Town) -> None:
    town.nodes.remove("n1")
    town.silent = {"n1"}


def unknown_block(town: Town) -> None:
    town.blocks.append(town.block("default-7", "n0", 7))


def block_of_the_ledger_only(town: Town) -> None:
    del town.blocks[0]


def block_without_route(town: Town) -> None:
    town.routes["n0"] = [each for each in town.routes["n0"] if each.destination != "10.0.0.0/24"]


def route_without_block(town: Town) -> None:
    town.routes["n0"].append(route("fd00::700/120", 119))


def occupied_block_with_a_route(town: Town) -> None:
    town.use_of_block = BlockUse.OCCUPIED
    town.silent = {"n1"}


def address_without_route(town: Town) -> None:
    town.routes["n0"] = [each for each in town.routes["n0"] if each.destination != "fd00::005/128"]


def route_without_address(town: Town) -> None:
    town.routes["n0"].append(route("10.0.0.77/32", 116))


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (two_pods, {(FindingKind.HELD_TWICE, "address 10.0.0.5")}),
        (two_ledgers, {(FindingKind.HELD_TWICE, "address 10.0.0.5"), (FindingKind.HELD_TWICE, "address fd00::5")}),
        (two_blocks, {(FindingKind.HELD_TWICE, "block default-1"), (FindingKind.OUTSIDE_POOL, "pod shop/web-1")}),
        (leaked, {(FindingKind.LEAKED, "address 10.0.0.9"), (FindingKind.LEAKED, "address fd00::9")}),
        (pod_gone, {(FindingKind.POD_GONE, "address 10.0.0.5"), (FindingKind.POD_GONE, "address fd00::5")}),
        (
            not_in_ledger,
            {(FindingKind.NOT_IN_LEDGER, "address 10.0.0.5"), (FindingKind.NOT_IN_LEDGER, "address fd00::5")},
        ),
        (no_pool, {(FindingKind.OUTSIDE_POOL, "block default-0")}),
        (another_pools_network, {(FindingKind.OUTSIDE_POOL, "block default-1")}),
        (another_nodes_address, {(FindingKind.OUTSIDE_POOL, "pod shop/web-0")}),
        (absent_node, {(FindingKind.ABSENT_NODE, "block default-1")}),
        (unknown_block, {(FindingKind.BLOCK_NOT_IN_LEDGER, "block default-7")}),
        (
            block_of_the_ledger_only,
            {(FindingKind.BLOCK_NOT_IN_LEDGER, "block default-0"), (FindingKind.OUTSIDE_POOL, "pod shop/web-0")},
        ),
        (block_without_route, {(FindingKind.BLOCK_WITHOUT_ROUTE, "network 10.0.0.0/24")}),
        (route_without_block, {(FindingKind.ROUTE_WITHOUT_BLOCK, "network fd00::700/120")}),
        (
            occupied_block_with_a_route,
            {
                (FindingKind.ROUTE_WITHOUT_BLOCK, "network 10.0.0.0/24"),
                (FindingKind.ROUTE_WITHOUT_BLOCK, "network fd00::/120"),
            },
        ),
        (address_without_route, {(FindingKind.ADDRESS_WITHOUT_ROUTE, "address fd00::5")}),
        (route_without_address, {(FindingKind.ROUTE_WITHOUT_ADDRESS, "address 10.0.0.77")}),
    ],
)
def test_it_is_found_and_nothing_else(
    town: Town, break_it: Callable[[Town], None], found: set[tuple[FindingKind, str]]
) -> None:
    break_it(town)
    kinds = town.kinds()
    if break_it is two_ledgers:
        # The second node has it without a pod, too.
        kinds -= {(FindingKind.LEAKED, f"address {text}") for text in ("10.0.0.5", "fd00::5")}
    assert kinds == found


def test_a_fault_names_the_nodes_to_look_at_again(town: Town) -> None:
    two_ledgers(town)
    [nodes] = {finding.nodes for finding in town.findings() if finding.kind is FindingKind.HELD_TWICE}
    assert nodes == {"n0", "n1"}
    assert all(ip_address(finding.subject.removeprefix("address ")) for finding in town.findings())


def test_a_node_that_does_not_say_which_routes_are_its_own_is_not_judged_by_them(town: Town) -> None:
    """As an older coild."""
    ledger = msgspec.structs.replace(town.ledger("n0", 0), tables=None)
    evidence = Evidence(pools=[], blocks=[], nodes=[], pods=[], ledgers={"n0": NodeEvidence(ledger, None)})
    kinds = {finding.kind for finding in compare(evidence)}
    assert kinds == {FindingKind.BLOCK_NOT_IN_LEDGER, FindingKind.POD_GONE}


def test_each_block_within_another_is_found(town: Town) -> None:
    """Not only the one that comes next."""
    town.pools[0]["spec"]["subnets"] = [{"ipv4": "10.0.0.0/8", "ipv6": "fd00::/16"}]
    town.silent = {"n0", "n1"}
    town.pods = []
    town.blocks = [town.block(f"default-{number}", "n0", number) for number in range(3)]
    town.blocks[0]["ipv4"] = "10.0.0.0/16"
    assert town.kinds() == {(FindingKind.HELD_TWICE, f"block default-{number}") for number in (1, 2)}
