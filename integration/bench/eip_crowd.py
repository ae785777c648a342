"""Many policies, as one of two gateway nodes sees them: addresses by number, and the node's index. Pure.

Each of the two carries `policies` of them, each with a hundred pods that run elsewhere; one pod of each of the other
gateway's policies runs here. So a node has something to look up, and to translate, for every policy. Policies are
numbered through: those of this node first.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import IPAddress, IPNetwork
from coil.kernel.link import MacAddress

PODS: Final = 100
DESTINATIONS: Final = 4
HERE: Final = NodeName("gateway-a")
THERE: Final = NodeName("gateway-b")
ELSEWHERE: Final = NodeName("worker")
LOCAL_PODS: Final = 32
"""Of each policy that this node carries, so many pods are on it, the first ones, and the others elsewhere."""
MARK_THERE: Final = 0x26000200
MARK_ELSEWHERE: Final = 0x26000300
DESTINATION_RANGE: Final = IPv4Network("172.16.0.0/12")
"""All destinations are in it."""
POD_RANGE: Final = IPv4Network("10.64.0.0/12")
_EIP_RANGE: Final = IPv4Network("100.65.0.0/16")
_CLUSTER: Final = (POD_RANGE, IPv4Network("10.96.0.0/12"), IPv4Network("172.31.255.0/24"))
_MOST: Final = 1000
_STRIDE: Final = 128
"""Of the pods' addresses, from one policy to the next; leaves room for other pods in their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """`policies` on each of the two gateways."""

    policies: int

    def here(self) -> range:
        """The numbers of the policies that this node carries."""
        return range(self.policies)

    def there(self) -> range:
        """Of those that the other one does."""
        return range(self.policies, 2 * self.policies)

    def pods(self, number: int, *, replaced: int = 0) -> list[IPv4Address]:
        """The pods of a policy that matter to this node; the first `replaced` have been, by others."""
        pods = [pod_address(number, pod) for pod in range(replaced, PODS + replaced)]
        return pods if number < self.policies else pods[:1]

    def view(self, number: int, *, changed: bool = False) -> PolicyView:
        """A policy; `changed`: with another address, and another destination in the place of the last."""
        return PolicyView(
            ref=policy_ref(number),
            priority=0,
            destinations=tuple(destinations(number, changed=changed)),
            pod_subnets=(),
            eip=Eip(eip_address(number, changed=changed), None),
            node=HERE if number < self.policies else THERE,
            fail_open=False,
        )

    def sources(self, number: int, *, replaced: int = 0) -> dict[IPAddress, NodeName]:
        """The policy's pods and their nodes, as its slices tell them to every node."""
        local = range(LOCAL_PODS) if number < self.policies else range(replaced, replaced + 1)
        pods = range(replaced, PODS + replaced)
        return {pod_address(number, pod): HERE if pod in local else ELSEWHERE for pod in pods}

    def index(self) -> DataPlaneIndex:
        """The node's index with all of it, and nothing computed yet."""
        index = DataPlaneIndex(clock=time.monotonic)
        index.set_own(HERE)
        index.set_cluster(cluster_networks())
        others = (THERE, MARK_THERE), (ELSEWHERE, MARK_ELSEWHERE)
        index.set_peers(
            [
                Peer(node=node, mark=mark, mac=MacAddress(f"02:00:00:00:00:{number:02x}"))
                for number, (node, mark) in enumerate(others, start=2)
            ]
        )
        index.set_policies(self.view(number) for number in range(2 * self.policies))
        for number in range(2 * self.policies):
            index.set_sources(policy_ref(number), self.sources(number))
        return index

    def travellers(self, count: int) -> Iterator[tuple[IPv4Address, IPv4Address]]:
        """That many pods of this node, `LOCAL_PODS` at most, spread over the policies that it carries, and where each
        goes.
        """
        for index in range(count):
            number = (index * self.policies // count) % self.policies
            destination = list(destinations(number))[index % DESTINATIONS]
            yield pod_address(number, index), destination[index + 1]


def cluster_networks() -> tuple[IPNetwork, ...]:
    """The cluster's own."""
    return _CLUSTER


def policy_ref(number: int) -> PolicyRef:
    return PolicyRef(namespace=f"tenant-{number % 50:02d}", name=f"policy-{number:04d}")


def pod_address(number: int, pod: int) -> IPv4Address:
    return POD_RANGE[number * _STRIDE + pod + 1]


def eip_address(number: int, *, changed: bool = False) -> IPv4Address:
    return _EIP_RANGE[number + (32768 if changed else 0) + 1]


def destinations(number: int, *, changed: bool = False) -> Iterator[IPv4Network]:
    """A few networks, none beside another; policies whose numbers differ by thousands share them."""
    for index in range(DESTINATIONS):
        block = number % _MOST + index * _MOST
        network = IPv4Network((int(DESTINATION_RANGE[block << 8]), 24))
        last = index == DESTINATIONS - 1
        yield next(network.subnets(new_prefix=25)) if changed and last else network
