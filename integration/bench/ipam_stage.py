"""The stage of the scale figures: a real API server with the chart, nodes and pools on it, and the controller's lease.

The bench holds that lease whenever no controller is to work. A controller that is started meanwhile lists everything
and stands by; handing it the lease is the moment from which it works.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from ipaddress import IPv4Address

import msgspec

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, Granted
from coil.crd.builtin import NODES
from coil.crd.names import NodeName, PoolName
from coil.ipam.layout import parse_layout
from coil.kube.client import KubeClient
from coil.kube.lease_lock import LEASES, Lease, LeaseLock, LeaseSpec
from coil.kube.watch import Added, Modified
from integration.bench.bare_client import BareClient, Call
from integration.bench.ipam_text import create_node, create_old_block, create_pool, create_request
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.cluster.process import Process
from integration.deployment import apply_chart, ipam_controller_command, ready_probe, remove_webhooks

CONTROLLER = "coil-ipam-controller"
_NAMESPACE = "kube-system"
_HOLDER = "bench"
_FILLERS = 32
_HOLD_SECONDS = 3600
_WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.01
_LOCALHOST = IPv4Address("127.0.0.1")


class Stage:
    """`kube` and `filler` are the administrator's."""

    def __init__(self, plane: ControlPlane, *, kube: KubeClient, filler: BareClient, nodes: int) -> None:
        self.plane = plane
        self.kube = kube
        self.filler = filler
        self.nodes = nodes
        self._lease = LeaseLock(client=kube, namespace=_NAMESPACE, name=CONTROLLER)
        self._ports = free_port(_LOCALHOST, 9386), free_port(_LOCALHOST, 9387)

    async def add_pool(self, name: PoolName, subnet: str) -> AddressPool:
        """While no controller runs: there is nobody to judge it."""
        await asyncio.to_thread(remove_webhooks, self.plane)
        await self.filler.send(create_pool(name, subnet))
        return await self.kube.get(ADDRESS_POOLS, name)

    async def add_requests(self, pool: PoolName, *, but: Collection[NodeName] = (), width: int = _FILLERS) -> None:
        """One of each node, with exceptions; so many at a time."""
        nodes = await self.kube.list(NODES)
        wanted = [node for node in nodes if node.metadata.name not in but]
        await self.filler.send_chains(([create_request(node, pool)] for node in wanted), width=width)

    async def add_old_blocks(self, pool: AddressPool, count: int) -> None:
        """Blocks of the pool from index 0 on, dealt out to the nodes in turn."""
        layout = parse_layout(pool)
        blocks = (layout.block_at(index) for index in range(count))
        await self.filler.send_chains(
            [create_old_block(block, pool=pool, number=block.index % self.nodes)] for block in blocks
        )

    async def remove_requests(self) -> None:
        await self.filler.send(Call("DELETE", BLOCK_REQUESTS.path()))

    async def hold_lease(self) -> None:
        """Keep every controller idle. None may be at work."""
        held = LeaseSpec(holder_identity=_HOLDER, lease_duration_seconds=_HOLD_SECONDS)
        lease = await self._lease.read()
        if lease is None:
            await self._lease.create(Lease(spec=held))
        else:
            await self._lease.replace(msgspec.structs.replace(lease, spec=held))

    async def hand_over(self) -> float:
        """Let the controller work; the moment when it is seen to hold the lease, on `time.perf_counter`."""
        lease = await self._lease.read()
        if lease is None:
            raise RuntimeError("the lease is not held")
        leases = self.kube.collection(LEASES, namespace=_NAMESPACE, fields=f"metadata.name={CONTROLLER}")
        async with asyncio.timeout(_WAIT_SECONDS):
            async with leases.watch(resource_version=lease.metadata.resource_version) as batches:
                await self._lease.replace(msgspec.structs.replace(lease, spec=LeaseSpec(lease_duration_seconds=1)))
                async for batch in batches:
                    for event in batch:
                        if isinstance(event, Modified) and event.object.spec.holder_identity not in {"", _HOLDER}:
                            return time.perf_counter()
        raise RuntimeError("nobody took the lease")

    @asynccontextmanager
    async def answers(self, pool: PoolName) -> AsyncIterator["asyncio.Task[float]"]:
        """A task that ends when each node's request has its block; its result is that moment, on `perf_counter`."""
        page = await self.kube.collection(BLOCK_REQUESTS).list_page(limit=1, continue_token="")
        task = asyncio.create_task(self._follow_answers(pool, page.resource_version))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _follow_answers(self, pool: PoolName, version: str) -> float:
        granted: set[NodeName] = set()
        async with asyncio.timeout(_WAIT_SECONDS):
            # The API server may end a watch early that does not keep up with it.
            while True:
                async with self.kube.collection(BLOCK_REQUESTS).watch(resource_version=version) as batches:
                    async for batch in batches:
                        for event in batch:
                            version = event.object.metadata.resource_version
                            if isinstance(event, Added | Modified) and _grants(event.object, pool):
                                granted.add(event.object.spec.node_name)
                        if len(granted) == self.nodes:
                            return time.perf_counter()

    async def start_controller(self) -> tuple[Process, float]:
        """The process, and the seconds from its exec until `/readyz` said 200."""
        return await asyncio.to_thread(self._start_controller)

    def _start_controller(self) -> tuple[Process, float]:
        ready = ready_probe(self._ports[1])
        command = ipam_controller_command(self.plane, ports=self._ports, flags=["--inspect-addr=127.0.0.1:0"])
        began = time.perf_counter()
        process = self.plane.workspace.spawn(CONTROLLER, command)
        while not ready():
            if process.poll() is not None or time.perf_counter() - began > _WAIT_SECONDS:
                raise process.failure("did not become ready")
            time.sleep(_POLL_SECONDS)
        return process, time.perf_counter() - began


@asynccontextmanager
async def open_stage(*, nodes: int) -> AsyncIterator[Stage]:
    """A control plane of its own with that many nodes, and the lease held; all of it gone afterwards."""
    with ControlPlane.start() as plane:
        apply_chart(plane)
        async with (
            KubeClient.connect(plane.admin_kubeconfig) as kube,
            BareClient(plane.admin_kubeconfig, connections=_FILLERS) as filler,
        ):
            stage = Stage(plane, kube=kube, filler=filler, nodes=nodes)
            await filler.send_chains([create_node(number)] for number in range(nodes))
            await stage.hold_lease()
            yield stage


def _grants(request: BlockRequest, pool: PoolName) -> bool:
    return request.spec.pool_name == pool and isinstance(request.outcome(), Granted)
