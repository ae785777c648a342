"""A storm: a cluster whose pods are ports, in which hundreds of things happen while everything fails.

    people      namespaces, pods and Services come, change and go
    programs    coil-raven and coild on two nodes are killed
    weather     calls to OpenStack are refused, late or lost (`Weather`), load balancers are stuck or fail, and
                quotas end and grow again

Each pod has a task that does what a kubelet does: a sandbox, an ADD that is repeated until it succeeds, a DEL. What
must always hold is looked at when an ADD has succeeded: nobody else has these addresses, and they are those of the
pod's own port. What must hold in the end is `calm`'s and `clear`'s.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from coil.crd.builtin import NAMESPACES, PODS, SERVICES
from coil.kube.errors import NotFoundError
from integration.apiserver.ipam_world import until
from integration.apiserver.neighbours import Neighbours, Station
from integration.apiserver.runtime import CniError, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.neutron.neutron_server import PROJECT
from integration.neutron.octavia_server import OctaviaServer
from integration.neutron.raven_world import RavenWorld
from integration.neutron.weather import Weather

MOST_NAMESPACES: Final = 4
MOST_PODS: Final = 12
MOST_SERVICES: Final = 4
_CALM_SECONDS: Final = 300.0
_DEL_SECONDS: Final = 180.0
_PAUSE: Final = 0.5


@dataclass(eq=False)
class StormPod:
    """A pod from its creation to the DEL. `addresses` are those of its last ADD, while it is up.

    `deleted` is set before its object is: from then on its port may go while an ADD is under way.
    """

    name: PodName
    station: Station
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    deleted: asyncio.Event = field(default_factory=asyncio.Event)
    addresses: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        return bool(self.addresses)


class Storm:
    """`seed` is what happens; how it meets what is under way is the machine's. Call `play`, `calm` and `clear`."""

    def __init__(
        self, world: RavenWorld, neighbours: Neighbours, octavia: OctaviaServer, weather: Weather, *, seed: int
    ) -> None:
        self._world = world
        self._neighbours = neighbours
        self._octavia = octavia
        self._weather = weather
        self._random = Random(seed)
        self._numbers = iter(range(1, 1 << 20))
        self._tasks: dict[StormPod, asyncio.Task[None]] = {}
        self._namespaces: list[str] = []
        self._services: list[tuple[str, str]] = []
        self._holders: dict[str, StormPod] = {}
        self.done: Counter[str] = Counter()
        self.adds: Counter[str] = Counter()

    @property
    def pods(self) -> list[StormPod]:
        """Those that are not being deleted."""
        return [pod for pod in self._tasks if not pod.ending.is_set()]

    async def play(self, operations: int) -> None:
        """So many things happen, one after the other. Raises what a pod's task has found."""
        happenings: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (2, self.add_namespace),
            (1, self.delete_namespace),
            (10, self.add_pod),
            (7, self.delete_pod),
            (3, self.add_service),
            (3, self.change_service),
            (4, self.change_endpoints),
            (2, self.delete_service),
            (2, self.kill_raven),
            (2, self.kill_coild),
            (1, self.change_quota),
            (2, self.change_octavia),
            (2, self.pause),
        ]
        self._weather.worsen()
        weights = [weight for weight, _ in happenings]
        for _ in range(operations):
            [(_, happen)] = self._random.choices(happenings, weights)
            began = time.monotonic()
            await happen()
            self.done[happen.__name__] += 1
            print(f"{happen.__name__}: {time.monotonic() - began:.1f} s, {len(self.pods)} pods", flush=True)
            for task in self._tasks.values():
                if task.done():
                    task.result()
            await asyncio.sleep(self._random.uniform(0.0, 0.3))

    async def calm(self) -> None:
        """Fair weather: every pod comes up, and every Service has its load balancer with a listener and a pool."""
        self._weather.clear()
        self._octavia.order("settle")
        self._world.neutron.set_quota(PROJECT)
        # Whoever waits longer and longer after failures begins anew.
        self._restart()
        what = "every pod is up, and every Service has its load balancer"
        await until(self.is_complete, what=what, timeout=_CALM_SECONDS)

    async def clear(self) -> None:
        """People delete everything. Returns when all pods have had their DEL."""
        for pod in self.pods:
            await self._end(pod)
        await asyncio.gather(*self._tasks.values())
        self._tasks.clear()
        for namespace, name in self._services:
            await self._world.client.delete(SERVICES, name, namespace=namespace)
        for namespace in self._namespaces:
            await self._world.client.delete(NAMESPACES, namespace)

    # --- people

    async def add_namespace(self) -> None:
        if len(self._namespaces) < MOST_NAMESPACES:
            self._namespaces.append(await self._world.add_namespace(f"storm-{next(self._numbers)}"))

    async def delete_namespace(self) -> None:
        if len(self._namespaces) > 1:
            namespace = self._random.choice(self._namespaces)
            self._namespaces.remove(namespace)
            for pod in [each for each in self.pods if each.name.namespace == namespace]:
                await self._end(pod)
            for service in [each for each in self._services if each[0] == namespace]:
                await self._delete_service(service)
            await self._world.client.delete(NAMESPACES, namespace)

    async def add_pod(self) -> None:
        if self._namespaces and len(self.pods) < MOST_PODS:
            namespace, name = self._random.choice(self._namespaces), f"pod-{next(self._numbers)}"
            station = self._random.choice(self._neighbours.stations)
            await self._world.add_pod(namespace, name, node=station.name)
            uid = (await self._world.client.get(PODS, name, namespace=namespace)).metadata.uid
            pod = StormPod(PodName(namespace, name, uid), station)
            self._tasks[pod] = asyncio.create_task(self._live(pod))

    async def delete_pod(self) -> None:
        if self.pods:
            await self._end(self._random.choice(self.pods))

    async def add_service(self) -> None:
        if self._namespaces and len(self._services) < MOST_SERVICES:
            namespace, name = self._random.choice(self._namespaces), f"service-{next(self._numbers)}"
            await self._world.add_service(namespace, name, type=self._random.choice(("ClusterIP", "LoadBalancer")))
            self._services.append((namespace, name))

    async def change_service(self) -> None:
        if self._services:
            namespace, name = self._random.choice(self._services)
            port = {"name": "http", "port": self._random.choice((80, 81, 443))}
            spec = {"ports": [port], "type": self._random.choice(("ClusterIP", "LoadBalancer"))}
            await self._world.client.patch(SERVICES, name, {"spec": spec}, namespace=namespace)

    async def change_endpoints(self) -> None:
        if self._services:
            namespace, name = self._random.choice(self._services)
            addresses = [f"10.1.0.{number}" for number in range(2, 2 + self._random.randrange(4))]
            await self._world.put_endpoints(namespace, addresses, service=name)

    async def delete_service(self) -> None:
        if self._services:
            await self._delete_service(self._random.choice(self._services))

    async def pause(self) -> None:
        await asyncio.sleep(self._random.uniform(0.5, 3.0))

    # --- programs

    async def kill_raven(self) -> None:
        await asyncio.to_thread(self._world.raven.crash)

    async def kill_coild(self) -> None:
        await asyncio.to_thread(self._random.choice(self._neighbours.stations).coild.crash)

    def _restart(self) -> None:
        programs = [self._world.raven, *(station.coild for station in self._neighbours.stations)]
        for program in programs:
            program.crash()
        for program in programs:
            program.wait_ready()

    # --- weather

    async def change_quota(self) -> None:
        if self._random.random() < 0.5:
            self._world.neutron.set_quota(PROJECT)
        else:
            found = self._world.neutron.snapshot()
            room = self._random.randrange(3)
            self._world.neutron.set_quota(
                PROJECT, port=found["ports"] + room, floatingip=found["floatingips"] + room, network=found["networks"]
            )

    async def change_octavia(self) -> None:
        self._octavia.order(self._random.choice(("settle", "settle", "hold", "fail")))

    # --- what a kubelet does

    async def _live(self, pod: StormPod) -> None:
        while not pod.ending.is_set():
            sandbox = pod.station.node.make_sandbox(pod.name, container_id=secrets.token_hex(32))
            try:
                addresses = await asyncio.to_thread(self._add, pod, sandbox)
                if addresses:
                    await self._enter(pod, addresses)
                    await pod.ending.wait()
            finally:
                for address in pod.addresses:
                    del self._holders[address]
                pod.addresses = ()
                await self._delete(pod, sandbox)
                sandbox.destroy()
            if not addresses:
                await asyncio.sleep(_PAUSE)

    def _add(self, pod: StormPod, sandbox: Sandbox) -> tuple[str, ...]:
        """The addresses; none if it is to be tried again with another sandbox."""
        try:
            addresses = tuple(addresses_of(pod.station.runtime.add(sandbox)))
        except CniError as failure:
            self.adds[f"code {failure.code}"] += 1
            return ()
        self.adds["done"] += 1
        return addresses

    async def _enter(self, pod: StormPod, addresses: Sequence[str]) -> None:
        """Judge what the ADD has answered. An address is a pod's until its DEL is asked for, or it is deleted."""
        if pod.deleted.is_set():
            return
        for address in addresses:
            holder = self._holders.setdefault(address, pod)
            assert holder is pod, f"{address} is {holder.name}'s and was given to {pod.name}"
        pod.addresses = tuple(addresses)
        ports = await asyncio.to_thread(self._ports_of, pod.name.uid)
        assert pod.deleted.is_set() or set(addresses) in ports, (
            f"{pod.name} has {addresses}, and its ports have {ports}"
        )
        status = {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}
        try:
            await self._world.client.patch(
                PODS, pod.name.name, {"status": status}, namespace=pod.name.namespace, subresource="status"
            )
        except NotFoundError:
            assert pod.deleted.is_set()

    def _ports_of(self, uid: str) -> list[set[str]]:
        """The addresses of each port that Neutron has for the pod."""
        with self._world.neutron.connect() as connection:
            ports: list[dict[str, Any]] = connection.network.get(f"/ports?device_id={uid}").json()["ports"]
        return [{fixed["ip_address"] for fixed in port["fixed_ips"]} for port in ports]

    async def _delete(self, pod: StormPod, sandbox: Sandbox) -> None:
        """Until it succeeds."""

        async def deleted() -> bool:
            try:
                await asyncio.to_thread(pod.station.runtime.delete, sandbox)
            except CniError as failure:
                self.adds[f"del: code {failure.code}"] += 1
                return False
            return True

        await until(deleted, what=f"the DEL of {pod.name}", timeout=_DEL_SECONDS)

    async def _end(self, pod: StormPod) -> None:
        """The sandbox first, as a kubelet does it, or the object first, as with --force."""
        if self._random.random() < 0.3:
            pod.deleted.set()
            await self._world.delete_pod(pod.name.namespace, pod.name.name)
            pod.ending.set()
        else:
            pod.ending.set()
            await asyncio.wait([self._tasks[pod]], timeout=_DEL_SECONDS)
            await self._world.delete_pod(pod.name.namespace, pod.name.name)

    # --- in the end

    async def _delete_service(self, service: tuple[str, str]) -> None:
        namespace, name = service
        self._services.remove(service)
        await self._world.client.delete(SERVICES, name, namespace=namespace)

    async def is_complete(self) -> bool:
        """Whether every pod is up, and every Service has its load balancer. Raises what a pod's task has found."""
        for task in self._tasks.values():
            if task.done():
                task.result()
        # The Service `kubernetes` has one, too.
        balancers = 1 + len(self._services)
        found = await asyncio.to_thread(self._octavia.snapshot)
        return all(pod.up for pod in self.pods) and found == {
            "loadbalancers": balancers,
            "listeners": balancers,
            "pools": balancers,
            "healthmonitors": 0,
        }
