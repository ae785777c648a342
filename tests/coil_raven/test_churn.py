"""Five hundred things happen to a cluster whose pods are ports: pods, Services and namespaces come, change and go,
while coil-raven and coild are killed at any moment, Neutron and Octavia refuse, lose answers, are stuck or fail, and
quotas end and grow again.

All the time, no port is plugged in for a pod that it is not for, and nothing is doubled. In the end, when the weather
is fair and everything has been deleted: nothing is left, neither in Neutron and Octavia nor on the nodes.

The seed is all of it: COIL_SEED=<number> has the same things happen again.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from coil.crd.builtin import NAMESPACES, PODS, SERVICES
from coil.crd.endpoint_slice import ENDPOINT_SLICES
from coil.neutron.handoff import ANNOTATION_PORT
from coil.neutron.identity import Kind, parse_identity
from coil.neutron.resource import OWNER_ROUTER_INTERFACES, FloatingIp, Port, PortId
from coil.openstack.error import ConflictError, OpenStackError, QuotaError, ThrottledError, UnavailableError
from coild.model.api_reader import NoAnswerError
from coild.model.attachment import AddRequest, AddressUnavailableError, PodName
from coild.model.port_error import PortError
from coild.neutron.journal import PortHolding
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.openstack.memory_octavia import MemoryOctavia
from tests.coil_raven.life import Life, add_namespace, add_pod
from tests.coil_raven.service_life import HTTP, ServiceLife, add_service, change_service, put_endpoints
from tests.coild.neutron.port_node import TYPE, Network, PortNode
from tests.coild.scene import end, key, now
from tests.coild.virtual_loop import VirtualLoop, pass_turns

OPERATIONS: Final = 500
SEEDS: Final = [int(os.environ["COIL_SEED"])] if "COIL_SEED" in os.environ else list(range(8))
NODES: Final = ("node-a", "node-b")
_OF_CLUSTER: Final = {Kind.ROUTER, Kind.VIP_NETWORK, Kind.VIP_SUBNET_IPV4, Kind.VIP_SUBNET_IPV6}
"""What stays as long as the cluster."""
FAILED_ADDS: Final = (AddressUnavailableError, NoAnswerError, PortError)
"""What the kubelet is told, and tries again after."""
MOST: Final = 6
"""Namespaces, and Services; there are four times as many pods."""
CALLS: Final = (
    *("create port", "delete port", "list ports", "bind port", "create ports", "assign port"),
    *("create network", "create subnet", "create security_group", "add router interface", "delete network"),
    *(
        "create loadbalancer",
        "create listener",
        "create pool",
        "create member",
        "update members",
        "delete loadbalancer",
    ),
    *("create floatingip", "delete floatingip", "update floatingip"),
)


class ChurnNode(PortNode):
    """A node of a cluster whose API server and network are others'. `pods` are those of its containers."""

    def __init__(self, folder: Path, api: MemoryApi, network: Network) -> None:
        super().__init__(folder)
        self.api, self.client = api, MemoryClient(api)
        self.neutron = network
        self.pods: dict[str, PodName] = {}

    def pod(self, container: str) -> PodName:
        return self.pods[container]

    def request(self, container: str) -> AddRequest:
        self.cache.look()
        return AddRequest(
            key=key(container),
            netns=self.kernel.namespace(container),
            pod=self.pods[container],
            addresses=(),
            network="k8s",
            deadline=now() + 55.0,
        )


@dataclass
class Churn:
    """One cluster. `play` is a run; `done` counts what has happened."""

    seed: int
    folder: Path
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.api = MemoryApi()
        self.neutron = MemoryNeutron(hosts=NODES)
        self.octavia = MemoryOctavia(neutron=self.neutron)
        self.public = self.neutron.add_external("public").id
        self.network = Network()
        self.nodes = {name: ChurnNode(self.folder / name, self.api, self.network) for name in NODES}
        self.numbers = iter(range(1, 100_000))
        self.pool_size = self.rng.choice((0, 3))
        self.running: dict[str, asyncio.Task[Any]] = {}
        """ADDs that are under way, by container."""
        self.up: set[str] = set()
        """The containers that run: an ADD has succeeded."""
        self.late: list[Callable[[], object]] = []
        """What a killed coil-raven had asked for, and what nobody waits for: it arrives all the same."""
        for service in (self.neutron, self.octavia):
            service.late = lambda _call, work: self.late.append(work)
        self._start_raven()

    def _start_raven(self) -> None:
        """A new leader, who knows nothing."""
        self.life = Life(MemoryClient(self.api), self.neutron, port_type=TYPE, pool_size=self.pool_size, cooling=5.0)
        self.services = ServiceLife(MemoryClient(self.api), self.neutron, self.octavia, public=self.public)

    # --- a run

    async def play(self) -> None:
        for node in self.nodes.values():
            await node.start()
        happenings: list[tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = [
            (2, self.add_namespace),
            (1, self.delete_namespace),
            (8, self.add_pod),
            (5, self.delete_pod),
            (4, self.add_service),
            (4, self.change_service),
            (4, self.change_endpoints),
            (2, self.delete_service),
            (20, self.reconcile),
            (5, self.kill_raven),
            (4, self.kill_coild),
            (10, self.refuse),
            (3, self.change_quota),
            (8, self.settle_octavia),
            (3, self.fail_octavia),
            (10, self.tell_neutron),
            (6, self.pass_time),
        ]
        weights = [weight for weight, _ in happenings]
        for _ in range(OPERATIONS):
            [(_, happen)] = self.rng.choices(happenings, weights)
            await happen()
            self.done[happen.__name__] += 1
            self.check()
        await self.clear_up()

    async def clear_up(self) -> None:
        """Fair weather, until everything is as planned; then everything is deleted, until nothing is left."""
        for cloud in (self.neutron, self.octavia):
            cloud.faults.refusals.clear()
            cloud.faults.lost_answers.clear()
            cloud.quotas.clear()
        await self._calm(rounds=60)
        self.check_complete()
        for pod in self.api.all(PODS):
            await self._delete_pod(pod.metadata.namespace, pod.metadata.name)
        for service in self.api.all(SERVICES):
            self.api.delete(SERVICES, service.metadata.name, namespace=service.metadata.namespace)
        for namespace in self.api.all(NAMESPACES):
            if not namespace.metadata.deleting:
                self.api.delete(NAMESPACES, namespace.metadata.name)
        await self._calm(rounds=60)
        self.check()
        assert (self.api.all(NAMESPACES), self.api.all(SERVICES)) == ([], [])
        left = [parse_identity(each.name) for each in self.neutron.everything().values()]
        assert {who.kind for who in left if who is not None} <= _OF_CLUSTER
        owners = {each.device_owner for each in self.neutron.everything().values() if isinstance(each, Port)}
        assert owners <= OWNER_ROUTER_INTERFACES
        assert self.neutron.snapshot()["floatingips"] == 0
        assert self.octavia.snapshot() == {"loadbalancers": 0, "listeners": 0, "pools": 0}
        for node in self.nodes.values():
            assert node.remains == []
            await node.kill()

    async def _calm(self, *, rounds: int) -> None:
        for _ in range(rounds):
            await self.reconcile()
            self.octavia.settle()
            await self.tell_neutron()
            for container, node in self._waiting():
                self._add(node, container)
            await asyncio.sleep(10.0)

    # --- what must hold

    def check(self) -> None:
        """Nothing is doubled, and nobody has what is another's."""
        for task in self.running.values():
            if task.done() and not task.cancelled():
                task.result()
        assert self.network.twice == []
        objects = self.neutron.everything()
        names = Counter(each.name for each in objects.values() if parse_identity(each.name) is not None)
        assert [name for name, count in names.items() if count > 1] == []
        floating = Counter(each.description for each in objects.values() if isinstance(each, FloatingIp))
        assert [each for each, count in floating.items() if count > 1] == []
        for port, (_, container) in self.network.plugged.items():
            pod = next(node.pods[container] for node in self.nodes.values() if container in node.pods)
            found = objects.get(port)
            assert found is None or (isinstance(found, Port) and found.device_id == pod.uid)
        for node in self.nodes.values():
            held: Counter[PortId] = Counter(self._ports(node.ipam.ledger.held()))
            assert [port for port, count in held.items() if count > 1] == []

    @staticmethod
    def _ports(held: Any) -> list[PortId]:
        holdings: list[PortHolding] = list(held)
        return [holding.port.port for holding in holdings]

    def check_complete(self) -> None:
        """In fair weather, every pod that there is runs with its port, and every Service has its load balancers."""
        pods = {pod.metadata.uid: pod for pod in self.api.all(PODS)}
        assert {pod.metadata.name for pod in pods.values() if ANNOTATION_PORT not in pod.metadata.annotations} == set()
        ports = self.life.ports.known()
        assert ports.keys() == pods.keys()
        assert {port.id for port in ports.values()} == self.network.plugged.keys()
        wanted = [service for service in self.api.all(SERVICES) if not service.metadata.deleting]
        balancers = [parse_identity(each.balancer.name) for each in self.services.reconciler.balancers.reports()]
        assert Counter(
            who.uid for who in balancers if who is not None and who.kind is Kind.LOAD_BALANCER_IPV4
        ) == Counter(service.metadata.uid for service in wanted)

    # --- people

    async def add_namespace(self) -> None:
        if len(self.api.all(NAMESPACES)) < MOST:
            add_namespace(self.api, f"space-{next(self.numbers)}")

    async def delete_namespace(self) -> None:
        if (name := self._choose(self._namespaces())) is not None:
            for pod in self.api.all(PODS, name):
                await self._delete_pod(name, pod.metadata.name)
            self.api.delete(NAMESPACES, name)

    async def add_pod(self) -> None:
        name = self._choose(self._namespaces())
        if name is not None and len(self.api.all(PODS)) < 4 * MOST:
            container = f"c{next(self.numbers)}"
            node = self.nodes[self.rng.choice(NODES)]
            pod = add_pod(self.api, f"pod-{container}", namespace=name, node=self._name_of(node))
            node.pods[container] = PodName(name, pod.metadata.name, pod.metadata.uid)
            self._add(node, container)

    async def delete_pod(self) -> None:
        if (pod := self._choose(self.api.all(PODS))) is not None:
            await self._delete_pod(pod.metadata.namespace, pod.metadata.name)

    async def add_service(self) -> None:
        if len(self.api.all(SERVICES)) < MOST:
            number = next(self.numbers)
            address = f"10.96.{number >> 8}.{number & 255}"
            kind = self.rng.choice(("ClusterIP", "LoadBalancer"))
            add_service(self.api, f"service-{number}", clusterIP=address, clusterIPs=[address], type=kind)

    async def change_service(self) -> None:
        if (name := self._choose(self._services())) is not None:
            port = {**HTTP, "port": self.rng.choice((80, 81, 443))}
            change_service(self.api, name, ports=[port], type=self.rng.choice(("ClusterIP", "LoadBalancer")))

    async def change_endpoints(self) -> None:
        if (name := self._choose(self._services())) is not None:
            addresses = [f"10.0.0.{number}" for number in range(2, 2 + self.rng.randrange(5))]
            put_endpoints(self.api, addresses, service=name)

    async def delete_service(self) -> None:
        if (name := self._choose(self._services())) is not None:
            self.api.delete(SERVICES, name, namespace="default")
            if self.api.find(ENDPOINT_SLICES, f"{name}-1", "default") is not None:
                self.api.remove(ENDPOINT_SLICES, f"{name}-1", "default")

    # --- the programs

    async def reconcile(self) -> None:
        """All that is queued, and now and then the comparison with all that Neutron has."""
        if self.rng.random() < 0.2:
            for look in (self.life.namespace_reconciler.orphans, self.life.pod_reconciler.discrepancies):
                async for _ in look():
                    pass
        await self.life.settle()
        await self.services.step()
        self.services.now += 5.0

    async def kill_raven(self) -> None:
        """In the middle of its work; what it had asked for arrives before its successor asks for anything."""

        async def work() -> None:
            with suppress(OpenStackError):
                await self.reconcile()

        task = asyncio.create_task(work())
        await pass_turns(self.rng.randrange(60))
        await end([task])
        for arrive in self.late:
            with suppress(OpenStackError):
                arrive()
        self.late.clear()
        self._start_raven()

    async def kill_coild(self) -> None:
        node = self.nodes[self.rng.choice(NODES)]
        await pass_turns(self.rng.randrange(60))
        await node.kill()
        await end([task for container in node.pods if (task := self.running.pop(container, None)) is not None])
        await node.start()

    # --- the weather

    async def refuse(self) -> None:
        call = self.rng.choice(CALLS)
        service = self.rng.choice((self.neutron, self.octavia))
        if self.rng.random() < 0.4:
            service.faults.lost_answers[call] += 1
            return
        error = self.rng.choice(
            (
                QuotaError(call, "OverQuota", "no more"),
                ThrottledError(call, "429", "too many", retry_after=1.0),
                UnavailableError(call, "503", "away"),
                UnavailableError(call, "timeout", "no answer"),
                ConflictError(call, "RevisionNumberConstraintFailed", "changed meanwhile"),
            )
        )
        service.faults.refusals.setdefault(call, []).append(error)

    async def change_quota(self) -> None:
        if self.neutron.quotas or self.octavia.quotas:
            self.neutron.quotas.clear()
            self.octavia.quotas.clear()
        else:
            for kind in ("ports", "networks", "floatingips"):
                self.neutron.quotas[kind] = self.neutron.snapshot()[kind] + self.rng.randrange(2)
            self.octavia.quotas["loadbalancers"] = self.octavia.snapshot()["loadbalancers"]

    async def settle_octavia(self) -> None:
        self.octavia.settle()

    async def fail_octavia(self) -> None:
        self.octavia.settle(failed=True)

    async def tell_neutron(self) -> None:
        """What agents do: a port that is plugged in is ACTIVE."""
        for port in self.network.plugged:
            if port in self.neutron.everything():
                self.neutron.set_status(port, "ACTIVE")

    async def pass_time(self) -> None:
        await asyncio.sleep(self.rng.choice((0.5, 5.0, 40.0)))

    # --- sandboxes, as kubelet has them made

    def _add(self, node: ChurnNode, container: str) -> None:
        async def add() -> None:
            # What an attempt before this one has left goes first.
            with suppress(*FAILED_ADDS):
                await node.engine.delete(key(container))
                await node.engine.add(node.request(container))
                self.up.add(container)

        self.running[container] = asyncio.create_task(add())

    def _waiting(self) -> list[tuple[str, ChurnNode]]:
        """Pods whose sandbox is not there, and that nobody is making."""
        return [
            (container, node)
            for node in self.nodes.values()
            for container in node.pods
            if ((task := self.running.get(container)) is None or task.done()) and container not in self.up
        ]

    async def _delete_pod(self, namespace: str, name: str) -> None:
        """The sandbox first, as kubelet does it, or the pod first, as with --force."""
        found = self.api.get(PODS, name, namespace)
        forced = self.rng.random() < 0.3
        if forced:
            self.api.remove(PODS, name, namespace)
        for node in self.nodes.values():
            for container, pod in list(node.pods.items()):
                if pod.uid == found.metadata.uid:
                    if (task := self.running.pop(container, None)) is not None:
                        await end([task])
                    await node.engine.delete(key(container))
                    del node.pods[container]
        if not forced:
            self.api.remove(PODS, name, namespace)
        for node in self.nodes.values():
            node.cache.look()

    # ---

    def _namespaces(self) -> list[str]:
        return [each.metadata.name for each in self.api.all(NAMESPACES) if not each.metadata.deleting]

    def _services(self) -> list[str]:
        return [each.metadata.name for each in self.api.all(SERVICES) if not each.metadata.deleting]

    def _choose(self, candidates: list[Any]) -> Any:
        return self.rng.choice(candidates) if candidates else None

    def _name_of(self, node: ChurnNode) -> str:
        return next(name for name, each in self.nodes.items() if each is node)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_doubled_lost_or_anothers(seed: int, tmp_path: Path) -> None:
    churn = Churn(seed, tmp_path)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(churn.play())
    assert sum(churn.done.values()) == OPERATIONS
    assert min(churn.done[name] for name in ("kill_raven", "kill_coild", "refuse", "add_pod", "delete_pod")) > 0
