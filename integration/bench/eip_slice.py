"""How often the controller writes endpoint slices when a thousand pods come and go, and how late the slices are.

The real egress-controller, under its own account, with a thousand policies; one of them selects a thousand pods, as a
Deployment has them, the others a few each. What is written is counted by a watch of all slices.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from typing import Final
from zlib import crc32

from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES, EgressEndpointSlice
from coil.kube.client import KubeClient
from coil.kube.watch import Added, Deleted, Modified
from integration.bench.bare_client import BareClient, Call
from integration.bench.eip_crowd import policy_ref
from integration.bench.eip_text import TENANTS, create_gateway, create_pod, create_policy, create_tenant, delete_pod
from integration.bench.process_state import cpu_seconds, resident_megabytes
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply_chart, egress_controller_command, egress_controller_probe
from integration.service import Service

CROWD: Final = 1000
"""Pods of the one policy."""
OTHERS: Final = 3
"""Pods of each other policy."""
LONERS: Final = 25
"""Pods that come, and go, one at a time."""
_BIG: Final = 0
_CONNECTIONS: Final = 16
_CONTROLLER: Final = "coil-egress-controller"
_PATIENCE_SECONDS: Final = 120.0
_CALM_SECONDS: Final = 2.0
_LONE_CALM_SECONDS: Final = 0.3
"""What comes after it opens another window."""
_LOCALHOST: Final = IPv4Address("127.0.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """`writes` of slices; `lag` from the last answer about a pod to the last slice, in seconds."""

    writes: int
    seconds: float
    lag: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTrial:
    """`start`: seconds from exec until the slices of all pods were there, and how many writes that took. `lone_lags`:
    of one more pod than a thousand, each time it comes and each time it goes, in seconds. `rolled`: each pod deleted
    and another one made, one after the other; `gone`: all deleted as fast as that goes; `scattered`: one pod of each
    policy replaced.

    Changes are written together at the end of a window that the first of them opens. A lone pod opens one and waits for
    all of it, so its lag is a property of the controller. The lag of a crowd is what happens to be left of a window
    when its last pod comes: chance, unless the controller has fallen behind.
    """

    start_seconds: float
    start_writes: int
    rss_mb: float
    lone_lags: tuple[float, ...]
    rolled: Churn
    gone: Churn
    scattered: Churn


class _Ledger:
    """What a watch has told of slices: the pods in them by policy, and how often something was written."""

    def __init__(self) -> None:
        self.writes = 0
        self.last = 0.0
        self._slices: dict[tuple[str, str], EgressEndpointSlice] = {}
        self.changed = asyncio.Event()

    async def follow(self, kube: KubeClient) -> None:
        """Until cancelled; before there are any slices."""
        slices = kube.collection(EGRESS_ENDPOINT_SLICES)
        version = (await slices.list_page(limit=1, continue_token="")).resource_version
        while True:
            async with slices.watch(resource_version=version) as batches:
                async for batch in batches:
                    for event in batch:
                        version = event.object.metadata.resource_version
                        if isinstance(event, Added | Modified | Deleted):
                            self._note(event)
                    self.changed.set()

    def pods(self) -> set[str]:
        """The names of all pods that are in slices."""
        return {endpoint.pod_name for one in self._slices.values() for endpoint in one.endpoints}

    async def await_pods(self, condition: Callable[[set[str]], bool], *, calm: float = _CALM_SECONDS) -> None:
        """Until it holds, and nothing has been written for `calm` seconds. Raises TimeoutError."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not condition(self.pods()):
                self.changed.clear()
                await self.changed.wait()
        while (left := self.last + calm - time.perf_counter()) > 0:  # noqa: ASYNC110 - of a clock, no event
            await asyncio.sleep(left)

    def _note(
        self, event: Added[EgressEndpointSlice] | Modified[EgressEndpointSlice] | Deleted[EgressEndpointSlice]
    ) -> None:
        key = (event.object.metadata.namespace, event.object.metadata.name)
        self.writes += 1
        self.last = time.perf_counter()
        if isinstance(event, Deleted):
            self._slices.pop(key, None)
        else:
            self._slices[key] = event.object


async def take_slice_trial(*, policies: int) -> SliceTrial:
    """With a control plane of its own."""
    with ControlPlane.start() as plane:
        await asyncio.to_thread(apply_chart, plane)
        async with (
            KubeClient.connect(plane.admin_kubeconfig) as kube,
            BareClient(plane.admin_kubeconfig, connections=_CONNECTIONS) as filler,
        ):
            names = await _fill(filler, policies)
            ledger = _Ledger()
            follower = asyncio.create_task(ledger.follow(kube))
            try:
                return await _measure(plane, filler, ledger, names)
            finally:
                follower.cancel()
                await asyncio.wait([follower])


async def _fill(filler: BareClient, policies: int) -> dict[int, list[str]]:
    """The names of the pods of each policy."""
    names = {
        number: [f"{policy_ref(number).name}-{pod:04d}" for pod in range(CROWD if number == _BIG else OTHERS)]
        for number in range(policies)
    }
    await filler.send_chains(create_tenant(name) for name in TENANTS)
    await filler.send(create_gateway(node=None, hosts=["nobody"]))
    await filler.send_chains(create_policy(number) for number in names)
    await filler.send_chains(_create(number, pod) for number, pods in names.items() for pod in pods)
    return names


async def _measure(plane: ControlPlane, filler: BareClient, ledger: _Ledger, names: dict[int, list[str]]) -> SliceTrial:
    every = {name for pods in names.values() for name in pods}
    health = free_port(_LOCALHOST, 19396)
    command = await asyncio.to_thread(
        egress_controller_command, plane, ports=(free_port(_LOCALHOST, health + 1), health), image="coil"
    )
    began = time.perf_counter()
    spawn = partial(plane.workspace.spawn, _CONTROLLER, command)
    service = Service(spawn, ready=egress_controller_probe(plane, health=health))
    await ledger.await_pods(lambda pods: pods == every)
    start_seconds, start_writes = ledger.last - began, ledger.writes
    pid = service.process.pid

    async def lone_lag(calls: Sequence[Call], pods: set[str]) -> float:
        await filler.send_chains([calls])
        told = time.perf_counter()
        await ledger.await_pods(lambda found: found == pods, calm=_LONE_CALM_SECONDS)
        return ledger.last - told

    async def churn(chains: Iterable[Sequence[Call]], condition: Callable[[set[str]], bool]) -> Churn:
        writes, busy, began = ledger.writes, cpu_seconds(pid), time.perf_counter()
        await filler.send_chains(chains)
        told = time.perf_counter()
        await ledger.await_pods(condition)
        return Churn(
            writes=ledger.writes - writes,
            seconds=ledger.last - began,
            lag=ledger.last - told,
            cpu_seconds=cpu_seconds(pid) - busy,
        )

    def replace(number: int, old: str) -> list[Call]:
        return [delete_pod(old, number=number), *_create(number, f"{old}-new")]

    loner = f"{policy_ref(_BIG).name}-more"
    lone_lags = []
    for _ in range(LONERS):
        lone_lags.append(await lone_lag(_create(_BIG, loner), every | {loner}))
        lone_lags.append(await lone_lag([delete_pod(loner, number=_BIG)], every))
    renewed = {f"{name}-new" for name in names[_BIG]}
    rolled = await churn(
        (replace(_BIG, name) for name in names[_BIG]), lambda pods: pods == every - set(names[_BIG]) | renewed
    )
    gone = await churn(
        ([delete_pod(name, number=_BIG)] for name in renewed), lambda pods: pods == every - set(names[_BIG])
    )
    others = {number: pods[0] for number, pods in names.items() if number != _BIG}
    old, new = set(others.values()), {f"{name}-new" for name in others.values()}
    scattered = await churn(
        (replace(number, name) for number, name in others.items()), lambda pods: new <= pods and not old & pods
    )
    return SliceTrial(
        start_seconds=start_seconds,
        start_writes=start_writes,
        rss_mb=resident_megabytes(pid, "VmRSS"),
        lone_lags=tuple(lone_lags),
        rolled=rolled,
        gone=gone,
        scattered=scattered,
    )


def _create(number: int, name: str) -> list[Call]:
    """A pod whose address nobody looks at."""
    address = IPv4Address("10.64.0.1") + crc32(name.encode()) % 100_000
    return create_pod(name, number=number, address=address, node="nobody")
