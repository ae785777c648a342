"""A cluster with gateway nodes in virtual time: an API server in memory, a leader of the controller, and agents.

Calls take `CALL` seconds and caches are late by `LATE`. An agent does what `coil.eip.gateway_lease` asks of one: it
renews its lease and holds what `lease_renewal.holding` grants for as long as its last renewal is good, and no longer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network
from random import Random
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from coil.crd.builtin import CONFIG_MAPS, NAMESPACES, NODES, ConfigMap
from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway
from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES, EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.names import NodeName
from coil.crd.resource import Resource
from coil.egress.cluster_networks import POD_AND_SERVICE_NETWORKS
from coil.eip.gateway_lease import (
    FENCE,
    LEASE_LABELS,
    GatewayLease,
    lease_name,
    parse_gateway_lease,
    render_annotations,
)
from coil.eip.lease_renewal import LeaseRenewal, held_entries, known_term
from coil.eip.tunnel_plan import TunnelNets
from coil.kube.errors import ApiError, ConflictError, NotFoundError, UnavailableError
from coil.kube.lease_lock import LEASES, Lease
from coil_egress_controller.eip.controllers import EipCaches, EipControllers, SourceCaches
from coil_egress_controller.eip.endpoint_index import EIP_PODS, POD_INDEXERS, EipPod, is_endpoint
from coil_egress_controller.eip.gateway_index import POLICY_INDEXERS
from coil_egress_controller.eip.metric import EipCollector, EipMetrics
from coil_egress_controller.eip.slice_reconciler import SLICE_INDEXERS
from tests.coil.kube.memory_api import Call, Document, MemoryApi, MemoryClient, Moment
from tests.coil.manager.replica import make_manager
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_egress_controller.scene import LOG, MemoryCache
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEASE_NAMESPACE = "coil-eip-leases"
CALL = 0.004
LATE = 0.003
RESYNC = 20.0
STEP = 0.002
"""How often a condition is looked at."""
ADDRESSES = ("203.0.113.1-203.0.113.9",)


class Network:
    """The way of a call to the API server: it takes `delay` seconds, and leads nowhere while the server is `away`."""

    def __init__(self) -> None:
        self.delay = CALL
        self.away = False

    async def travel(self, _call: Call, moment: Moment) -> None:
        if moment is Moment.BEFORE:
            await asyncio.sleep(self.delay)
            if self.away:
                raise UnavailableError("away")


POLICIES_PER_GATEWAY = 2000


class Agent:
    """The agent of one node. `cut` keeps it from the API server, `kill` ends it without a goodbye."""

    def __init__(self, world: "World", node: str) -> None:
        self._world = world
        self._client = MemoryClient(world.api, world.network.travel)
        self.node = NodeName(node)
        self.cut = False
        self.renewal = LeaseRenewal(self.node)
        self._lease: Lease | None = None
        self._task = asyncio.create_task(self._run())

    def holds(self) -> set[str]:
        """The addresses that answer on the node at this moment."""
        term = self.renewal.term(self._world.clock())
        return set() if term is None else self._granted(term)

    async def kill(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    def _granted(self, term: int) -> set[str]:
        entries = [
            entry
            for gateway in self._world.gateways.items()
            for entry in held_entries(gateway, self.node, term=term, applied=self.renewal.applied)
        ]
        return {text for entry in entries for text in (entry.ipv4, entry.ipv6) if text}

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(FENCE / 2):
                    await self._renew()
            except (ApiError, TimeoutError):
                self._lease = None
            await asyncio.sleep(FENCE / 3)

    async def _renew(self) -> None:
        if self.cut:
            raise UnavailableError("cut off")
        name = lease_name(self.node)
        if self._lease is None:
            with suppress(NotFoundError):
                self._lease = await self._client.get(LEASES, name, namespace=LEASE_NAMESPACE)
        known_lease = None if self._lease is None else gateway_lease_of(self._lease)
        gateways = self._world.gateways.items()
        own = {gateway.metadata.uid: gateway.status.revision for gateway in gateways}
        known = known_term(gateways, self.node)
        written = self.renewal.renew(known_lease, known_term=known, applied=own, gateways=own).lease
        assert written is not None
        sent = self._world.clock()
        document = {
            "metadata": {
                **(msgspec.to_builtins(self._lease.metadata) if self._lease is not None else {}),
                "name": name,
                "namespace": LEASE_NAMESPACE,
                "labels": LEASE_LABELS,
                "annotations": render_annotations(fence=FENCE, applied=written.applied),
            },
            "spec": {"holderIdentity": self.node, "leaseTransitions": written.term, "renewTime": f"{sent:.6f}"},
        }
        before, self._lease = self._lease, None
        if before is None:
            self._lease = await self._client.create(LEASES, document, namespace=LEASE_NAMESPACE)
        else:
            self._lease = await self._client.replace(LEASES, document, name=name, namespace=LEASE_NAMESPACE)
        self.renewal.acknowledge(written.term, sent=sent, now=self._world.clock())
        await self._report()

    async def _report(self) -> None:
        tunnel = self._world.api.find_document(EGRESS_TUNNELS, self.node)
        if tunnel is not None and tunnel.get("status", {}).get("phase") in {"Init", "HeartbeatTimeout"}:
            body = {"metadata": tunnel["metadata"], "status": {"phase": "Ready"}}
            with suppress(ConflictError):
                await self._client.patch(EGRESS_TUNNELS, self.node, body, subresource="status")


class Replica:
    """One of the controller's, with a connection and caches of its own, which are late by `late`."""

    def __init__(self, world: "World") -> None:
        api = world.api
        self.network = Network()
        self.late = LATE
        self.client = MemoryClient(api, self.network.travel)
        self.caches = EipCaches(
            nodes=MemoryCache(api, NODES),
            namespaces=MemoryCache(api, NAMESPACES),
            pods=KeptCache(api, EIP_PODS, POD_INDEXERS),
            tunnels=MemoryCache(api, EGRESS_TUNNELS),
            gateways=MemoryCache(api, EGRESS_GATEWAYS),
            policies=MemoryCache(api, EGRESS_GATEWAY_POLICIES, POLICY_INDEXERS),
            slices=MemoryCache(api, EGRESS_ENDPOINT_SLICES, SLICE_INDEXERS),
            leases=MemoryCache(api, LEASES),
        )
        self.sources = SourceCaches(
            policies=MemoryCache(api, EGRESS_POLICIES), cluster_policies=MemoryCache(api, EGRESS_CLUSTER_POLICIES)
        )
        self.cluster_networks: MemoryCache[ConfigMap] = MemoryCache(api, CONFIG_MAPS)
        self.registry = CollectorRegistry()
        self.controllers = EipControllers(
            caches=self.caches,
            sources=self.sources,
            cluster_networks=self.cluster_networks,
            extra_networks=[],
            client=self.client,
            recorder=world.recorder,
            metrics=EipMetrics(self.registry),
            lease_namespace=LEASE_NAMESPACE,
            tunnel_nets=TunnelNets(ipv4=IPv4Network("172.31.0.0/16"), ipv6=IPv6Network("fd11::/112")),
            slice_endpoints=100,
            policies_per_gateway=POLICIES_PER_GATEWAY,
            resync=RESYNC,
            now=world.now,
            clock=world.clock,
            random=Random(1).random,
            log=LOG,
        )
        self.manager = make_manager(registry=self.registry)
        self.manager.each_term(self.controllers.setup)
        self.manager.while_standing_by(self.controllers.stand_by)
        self.following = asyncio.Event()
        """While it is not set, the caches stand still."""
        self.following.set()
        self._changed = asyncio.Event()
        api.subscribe(self._changed.set)
        self._tasks = [asyncio.create_task(self._follow())]

    def look(self) -> None:
        for name in EipCaches.__dataclass_fields__:
            getattr(self.caches, name).look()
        self.cluster_networks.look()
        for source in (self.sources.policies, self.sources.cluster_policies):
            assert isinstance(source, MemoryCache)
            source.look()

    def stand_by(self) -> None:
        self._tasks.append(asyncio.create_task(self.manager.stand_by()))

    async def stop(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.wait(self._tasks)

    def writes(self, plural: str) -> int:
        return sum(written == plural for _, written in self.client.writes())

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(self.late)
            await self.following.wait()
            self.look()


class World:
    """Caches follow, and no address may be at two nodes, until `stop`. `lead` begins a leader's term."""

    def __init__(self) -> None:
        self.api = MemoryApi(self.now)
        self.recorder = MemoryRecorder()
        self.agents: dict[str, Agent] = {}
        self.replicas: list[Replica] = []
        self.leader = leader = self.add_replica()
        """The one that leads, when one does."""
        self.network = leader.network
        """The leader's, and that of all agents."""
        self.client = leader.client
        self.caches = leader.caches
        self.gateways = leader.caches.gateways
        self.registry = leader.registry
        self.following = leader.following
        EipCollector(gateways=leader.caches.gateways, policies=leader.caches.policies, registry=leader.registry)
        self._watching = asyncio.create_task(self._watch())
        self._term: asyncio.Task[None] | None = None

    def add_replica(self) -> Replica:
        """It does nothing yet."""
        self.replicas.append(Replica(self))
        return self.replicas[-1]

    @staticmethod
    def clock() -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.clock())

    def look(self) -> None:
        for replica in self.replicas:
            replica.look()

    def lead(self) -> None:
        """A leader begins its term."""
        self._term = asyncio.create_task(self.leader.manager.lead())

    async def depose(self) -> None:
        """The leader's term ends; nothing of it must be left."""
        assert self._term is not None
        assert not self._term.done(), self._term
        self._term.cancel()
        await asyncio.wait({self._term})
        self._term = None

    async def stop(self) -> None:
        if self._term is not None:
            await self.depose()
        for agent in self.agents.values():
            await agent.kill()
        for replica in self.replicas:
            await replica.stop()
        if self._watching.done():
            self._watching.result()
        self._watching.cancel()
        await asyncio.wait({self._watching})

    async def until(self, reached: Callable[[], bool], *, within: float = 20.0) -> float:
        """The seconds it took."""
        began = self.clock()
        while not reached():
            assert self.clock() - began < within, "not reached"
            await asyncio.sleep(STEP)
        return self.clock() - began

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def add_node(self, name: str, *, agent: bool = True, gateway: bool = True, **status: Any) -> None:
        addresses = [{"type": "InternalIP", "address": f"192.0.2.{len(self.caches.nodes.items()) + 1}"}]
        ready = [{"type": "Ready", "status": "True"}]
        labels = {"egress": "true"} if gateway else {}
        self.api.put(
            NODES,
            {
                "metadata": {"name": name, "labels": labels},
                "status": {"addresses": addresses, "conditions": ready, **status},
            },
        )
        self.look()
        if agent:
            self.agents[name] = Agent(self, name)

    def change(self, resource: Resource[Any], name: str, namespace: str = "", **fields: Any) -> None:
        """Replace top-level fields, or labels."""
        live = self.document(resource, name, namespace)
        labels = fields.pop("labels", None)
        metadata = live["metadata"] | ({"labels": labels} if labels is not None else {})
        self.api.put(resource, live | {"metadata": dict(metadata)} | fields)

    def add_gateway(self, name: str = "eg", *, ipv4: tuple[str, ...] = ADDRESSES, **spec: Any) -> None:
        selector = {"selector": {"matchLabels": {"egress": "true"}}}
        body = {"ranges": {"ipv4": list(ipv4), "policy": "PreferUnused"}, "nodeSelector": selector, **spec}
        self.api.put(EGRESS_GATEWAYS, {"metadata": {"name": name}, "spec": body})

    def add_namespace(self, name: str, **labels: str) -> None:
        self.api.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})

    def add_policy(self, name: str, namespace: str = "shop", *, gateway: str = "eg", **spec: Any) -> None:
        body = {
            "egressGatewayName": gateway,
            "appliedTo": {"podSelector": {"matchLabels": {"app": name}}},
            **spec,
        }
        self.api.put(EGRESS_GATEWAY_POLICIES, {"metadata": {"name": name, "namespace": namespace}, "spec": body})

    def publish_networks(self, *networks: str) -> None:
        """As the controller of the cluster's networks does."""
        metadata = {"name": "coil-cluster-networks", "namespace": "kube-system"}
        self.api.put(CONFIG_MAPS, {"metadata": metadata, "data": {POD_AND_SERVICE_NETWORKS: "\n".join(networks)}})

    def add_pod(self, name: str, namespace: str = "shop", *, app: str, ip: str, **status: Any) -> None:
        self.api.put(
            EIP_PODS,
            {
                "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
                "spec": {"nodeName": "worker"},
                "status": {"phase": "Running", "podIPs": [{"ip": ip}], **status},
            },
        )

    def document(self, resource: Resource[Any], name: str, namespace: str = "") -> Document:
        found = self.api.find_document(resource, name, namespace)
        assert found is not None, name
        return found

    def gateway(self, name: str = "eg") -> EgressGateway:
        return msgspec.convert(self.document(EGRESS_GATEWAYS, name), EgressGateway)

    def policy(self, name: str, namespace: str = "shop") -> EgressGatewayPolicy:
        return msgspec.convert(self.document(EGRESS_GATEWAY_POLICIES, name, namespace), EgressGatewayPolicy)

    def listed(self, gateway: str = "eg") -> dict[str, str]:
        """By policy, the node that the gateway's status lists it at."""
        return {
            policy.name: node.name
            for node in self.gateway(gateway).status.node_list
            for entry in node.eips
            for policy in entry.policies
        }

    def all_placed(self, *policies: str) -> bool:
        """Whether each policy's own status says that a node carries it."""
        return all(self.policy(policy).status.node for policy in policies)

    def holders(self) -> dict[str, str]:
        """By address, the node at which it answers. Two are an error."""
        found: dict[str, str] = {}
        for name, agent in self.agents.items():
            for address in agent.holds():
                assert address not in found, f"{address} is at {found[address]} and {name}"
                found[address] = name
        return found

    def writes(self, plural: str) -> int:
        """Of the leader."""
        return self.leader.writes(plural)

    @contextmanager
    def no_writes(self, plural: str) -> Iterator[None]:
        before = self.writes(plural)
        yield
        assert self.writes(plural) == before

    async def _watch(self) -> None:
        """No address is ever at two nodes."""
        while True:
            self.holders()
            await asyncio.sleep(STEP)


class KeptCache(MemoryCache[EipPod]):
    """As an informer whose collection has `keep`."""

    def _present(self) -> list[EipPod]:
        return [pod for pod in super()._present() if is_endpoint(pod)]


def gateway_lease_of(lease: Lease) -> GatewayLease | None:
    return parse_gateway_lease(
        name=lease.metadata.name,
        version=lease.metadata.resource_version,
        holder=lease.spec.holder_identity,
        transitions=lease.spec.lease_transitions,
        annotations=lease.metadata.annotations,
    )


def play(script: Callable[[World], Awaitable[None]]) -> None:
    """Run `script` in a world of its own, in virtual time."""

    async def main() -> None:
        world = World()
        try:
            await script(world)
        finally:
            await world.stop()

    run_virtual(main)
