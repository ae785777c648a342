"""The cluster's own addresses, which no pod may have: those of its Nodes, and the networks of its Services.

A block with one of them would take packets for a node, or for a Service, to a pod: route by route, a pool over the
nodes' network cuts nodes from each other and from the API server. So such a pool is refused, and where a Node came
later, no block is given that has its address.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TypeAlias

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import Node, Service, ServiceCidr
from coil.crd.pool_validation import pool_networks
from coil.crd.resource import object_key
from coil.crd.validation import FieldError, render_names
from coil.ipam.layout import PlannedBlock

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

NAMED = 3
"""Addresses that a message names."""


class ClusterNetworks:
    """What the caches have told. All methods are synchronous. A question costs O(log nodes + networks of Services), and
    what is found.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, list[tuple[int, str]]] = {4: [], 6: []}
        """Addresses by version, sorted, with the name of their Node."""
        self._services: dict[str, tuple[Network, ...]] = {}
        """By what says so."""

    def observe_node(self, old: Node | None, new: Node | None) -> None:
        """A Node appeared (no `old`), changed, or went (no `new`)."""
        before, after = (_node_entries(node) for node in (old, new))
        for version, entry in before - after:
            entries = self._nodes[version]
            position = bisect_left(entries, entry)
            if position < len(entries) and entries[position] == entry:
                del entries[position]
        for version, entry in after - before:
            insort(self._nodes[version], entry)

    def observe_service_cidr(self, old: ServiceCidr | None, new: ServiceCidr | None) -> None:
        """The same of a ServiceCIDR."""
        if (present := new or old) is not None:
            cidrs = new.spec.cidrs if new is not None else ()
            self._set_services(f"the ServiceCIDR {present.metadata.name}", cidrs)

    def observe_service(self, old: Service | None, new: Service | None) -> None:
        """The same of the Service of the API server, where no ServiceCIDR tells: its addresses are in the network."""
        if (present := new or old) is not None:
            addresses = new.spec.cluster_ips if new is not None else ()
            self._set_services(f"the Service {object_key(present.metadata)}", addresses)

    def occupants(self, network: Network) -> Iterator[str]:
        """Whose addresses are in the network: Nodes in the order of their addresses, then Services."""
        first = int(network.network_address)
        entries = self._nodes[network.version]
        for number, name in entries[bisect_left(entries, (first, "")) :]:
            if number >= first + network.num_addresses:
                break
            yield f"{_address(network.version, number)} of the Node {name}"
        for source, networks in self._services.items():
            for theirs in networks:
                if theirs.version == network.version and network.overlaps(theirs):
                    yield f"{theirs} of {source}"

    def occupied_run(self, planned: PlannedBlock) -> int:
        """How many blocks of its size, from this one on, have addresses of the cluster's own for certain; 0: it has
        none. A network of Services may be as large as a pool, and nobody can try its blocks one by one.
        """
        runs = (self._run(network) for network in (planned.ipv4, planned.ipv6) if network is not None)
        return max(runs, default=0)

    def _run(self, network: Network) -> int:
        first, size = int(network.network_address), network.num_addresses
        last = max(
            (
                int(theirs.broadcast_address)
                for networks in self._services.values()
                for theirs in networks
                if theirs.version == network.version and network.overlaps(theirs)
            ),
            default=-1,
        )
        if last >= 0:
            return (last - first) // size + 1
        entries = self._nodes[network.version]
        position = bisect_left(entries, (first, ""))
        return int(position < len(entries) and entries[position][0] < first + size)

    def _set_services(self, source: str, texts: Iterable[str]) -> None:
        found: list[Network] = []
        for text in texts:
            with suppress(ValueError):  # "None" of a headless Service
                found.append(ip_network(text))
        if found:
            self._services[source] = tuple(found)
        else:
            self._services.pop(source, None)


def validate_unoccupied(pool: AddressPool, networks: ClusterNetworks) -> list[FieldError]:
    """Each network of the pool that has addresses of the cluster's own."""
    return [
        FieldError(path, f"{network} has addresses of the cluster's own: {message}")
        for path, network in pool_networks(pool.spec)
        if (message := _describe(networks.occupants(network)))
    ]


def describe_occupants(those: Iterable[Network], networks: ClusterNetworks) -> str:
    """Whose addresses are in those networks, for people; "" if nobody's."""
    return _describe(occupant for network in those for occupant in networks.occupants(network))


def describe_occupied(pool: AddressPool, networks: ClusterNetworks) -> str:
    """The same of a pool."""
    message = describe_occupants((network for _, network in pool_networks(pool.spec)), networks)
    return f"blocks with addresses of the cluster's own are not given: {message}" if message else ""


def _describe(occupants: Iterable[str]) -> str:
    names = list(occupants)
    return render_names(names, shown=NAMED) if names else ""


def _node_entries(node: Node | None) -> set[tuple[int, tuple[int, str]]]:
    if node is None:
        return set()
    return {(address.version, (int(address), node.metadata.name)) for address in node.addresses()}


def _address(version: int, number: int) -> Address:
    return IPv4Address(number) if version == 4 else IPv6Address(number)
