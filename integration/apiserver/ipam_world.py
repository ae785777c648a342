"""Nodes, pools and requests for tests of the ipam-controller, which runs as real processes under its own account.

Everything has names of this world's own, and goes with it.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Any

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, BlockRequestSpec, Pending
from coil.crd.builtin import CLUSTER_EVENT_NAMESPACE, EVENTS, NODES, Event
from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import FINALIZER, NodeName, PoolName
from coil.crd.resource import Resource
from coil.kube.client import KubeClient
from coil.kube.errors import NotFoundError
from integration.apiserver.refusal_log import missing_rights
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.deployment import controller_probe, ipam_controller_command, ready_probe, remove_webhooks
from integration.metrics_page import fetch_metrics, parse_samples
from integration.patience import TIMEOUT
from integration.service import Service

STOP_TIMEOUT = 60.0  # seconds; it gives itself ten
LOCALHOST = IPv4Address("127.0.0.1")
_AT_ONCE = 20
# As short as an election allows: a killed leader's lease has to expire before anybody else works. Nodes that are
# deleted here do not come back. And the page that nobody looks at takes no port that others count on.
FLAGS = ("--lease-duration=5s", "--node-grace=1s", "--inspect-addr=127.0.0.1:0")


class Replica:
    """One ipam-controller. Its lives share a log and ports. `everywhere`: it answers reviews at all addresses."""

    def __init__(self, plane: ControlPlane, name: str, *flags: str, everywhere: bool = False) -> None:
        self._metrics = free_port(LOCALHOST, 9386)
        health = free_port(LOCALHOST, self._metrics + 1)
        self.is_ready = ready_probe(health)
        """Whether it says so itself; whether the API server calls it, `service` asks as well."""
        command = ipam_controller_command(
            plane, ports=(self._metrics, health), flags=(*FLAGS, *flags), everywhere=everywhere
        )
        (address,) = (part for part in command if part.startswith("--webhook-addr="))
        self.webhook_port = int(address.rpartition(":")[2])
        self.service = Service(
            lambda: plane.workspace.spawn(name, command), ready=controller_probe(plane, health=health)
        )

    def lines(self) -> list[dict[str, object]]:
        """What it has logged so far."""
        return self.service.process.entries()

    def has_logged(self, event: str) -> bool:
        return any(line["event"] == event for line in self.lines())

    def resyncs(self, controller: str) -> int:
        """How often that controller has looked at everything."""
        return sum(line["event"] == "resync" and line["controller"] == controller for line in self.lines())

    def metrics(self) -> dict[str, float]:
        """Its samples, by name and labels as they are written."""
        return parse_samples(fetch_metrics(f"{LOCALHOST}:{self._metrics}"))


class IpamWorld:
    """`client` is the administrator's."""

    def __init__(self, plane: ControlPlane, client: KubeClient) -> None:
        self.plane = plane
        self.client = client
        self.name = f"ipam-{secrets.token_hex(3)}"
        self.replicas: list[Replica] = []

    def start_replica(self, *flags: str) -> Replica:
        """Start a replica without waiting for it."""
        replica = Replica(self.plane, f"{self.name}-{len(self.replicas)}", *flags)
        self.replicas.append(replica)
        return replica

    async def start_ready(self, *flags: str) -> Replica:
        """Start a replica and return when it is ready."""
        replica = self.start_replica(*flags)
        await asyncio.to_thread(replica.service.wait_ready)
        return replica

    async def remove_webhooks(self) -> None:
        """Let every pool pass that the schema accepts, also while replicas run; until the next one is started."""
        await asyncio.to_thread(remove_webhooks, self.plane)

    async def add_node(self, name: str) -> NodeName:
        """An object without a kubelet; returns its full name."""
        full = f"{self.name}-{name}"
        await self.client.create(NODES, {"metadata": {"name": full}})
        return NodeName(full)

    async def add_pool(self, name: str, *subnets: Mapping[str, str], bits: int = 5) -> PoolName:
        """Returns its full name."""
        full = PoolName(f"{self.name}-{name}")
        entries = tuple(SubnetSet(**subnet) for subnet in subnets)
        spec = AddressPoolSpec(block_size_bits=bits, subnets=entries)
        await self.client.create(ADDRESS_POOLS, AddressPool(metadata=ObjectMeta(name=full), spec=spec))
        return full

    async def ask(self, name: str, *, node: NodeName, pool: PoolName) -> str:
        """A block request, owned by its node as coild's are; returns its full name."""
        full = f"{self.name}-{name}"
        owner = (await self.client.get(NODES, node)).metadata.uid
        owners = (OwnerReference(api_version="v1", kind="Node", name=node, uid=owner),)
        body = BlockRequest(
            metadata=ObjectMeta(name=full, owner_references=owners),
            spec=BlockRequestSpec(node_name=node, pool_name=pool),
        )
        await self.client.create(BLOCK_REQUESTS, body)
        return full

    async def request(self, name: str) -> BlockRequest:
        return await self.client.get(BLOCK_REQUESTS, name)

    async def requests(self) -> list[BlockRequest]:
        found = await self.client.list(BLOCK_REQUESTS)
        return [item for item in found if item.metadata.name.startswith(self.name)]

    async def blocks(self) -> list[AddressBlock]:
        return [item for item in await self.client.list(ADDRESS_BLOCKS) if item.name.startswith(self.name)]

    async def pool(self, name: PoolName) -> AddressPool | None:
        try:
            return await self.client.get(ADDRESS_POOLS, name)
        except NotFoundError:
            return None

    async def events(self, name: str) -> list[Event]:
        """What people were told of the object of that name, oldest first. It has no namespace."""
        found = await self.client.list(EVENTS, namespace=CLUSTER_EVENT_NAMESPACE, fields=f"involvedObject.name={name}")
        return sorted(found, key=lambda event: str(event.first_timestamp))

    async def all_answered(self) -> bool:
        return not any(isinstance(item.outcome(), Pending) for item in await self.requests())

    async def give_back(self, block: AddressBlock) -> None:
        """As coild does it with an empty block."""
        await self.client.delete(ADDRESS_BLOCKS, block.name)
        live = await self.client.get(ADDRESS_BLOCKS, block.name)
        finalizers = [name for name in live.metadata.finalizers if name != FINALIZER]
        await self.client.patch(ADDRESS_BLOCKS, block.name, {"metadata": {"finalizers": finalizers}})

    def missing_rights(self) -> list[str]:
        """What the replicas were refused for want of a right."""
        return [line for replica in self.replicas for line in missing_rights(replica.service.process.log)]

    async def close(self) -> None:
        """End the replicas, so that each leaves its lease to the next one, and remove whatever is left."""
        for replica in self.replicas:
            await asyncio.to_thread(replica.service.process.stop, timeout=STOP_TIMEOUT)
        # Nobody answers any more.
        await self.remove_webhooks()
        resources: tuple[Resource[Any], ...] = (BLOCK_REQUESTS, ADDRESS_BLOCKS, ADDRESS_POOLS, NODES)
        for resource in resources:
            names = [item.metadata.name for item in await self.client.list(resource)]
            own = [name for name in names if name.startswith(self.name)]
            # A request that waits for one of the client's connections for long fails.
            for start in range(0, len(own), _AT_ONCE):
                await asyncio.gather(*(self._remove(resource, name) for name in own[start : start + _AT_ONCE]))

    async def _remove(self, resource: Resource[Any], name: str) -> None:
        with suppress(NotFoundError):
            await self.client.patch(resource, name, {"metadata": {"finalizers": None}})
            await self.client.delete(resource, name)


async def until(holds: Callable[[], Awaitable[object]], *, what: str, timeout: float = TIMEOUT) -> None:
    """Return when `holds` does. Raises AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not await holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s"
        await asyncio.sleep(0.05)
