"""What `kubectl coil trace` tells of packets is what the receiver sees of them, in arrangements of pods, Egresses and
Services that a seed makes: others each time.

A failure names the seed of its arrangement, `COIL_TRACE_SEED`, which makes it again.
"""

import os
import random
import secrets
import select
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.egress.api import Document
from integration.egress.external_host import ADDRESSES, NEIGHBOURS, NETWORKS
from integration.egress.outside import CLIENT_NAMESPACE
from integration.egress.pod import RunningPod
from integration.egress.world import EgressUnderTest, World
from integration.netns.netns import call_inside
from integration.patience import wait_until_clean
from integration.stage_trace import Question, StageReader, describe, trace_packets
from kubectl_coil.trace.document import TraceDocument, Verdict

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver, pytest.mark.slow]

PORT = 4040
PATIENCE = 4.0
"""Seconds for a packet to arrive, before it is taken for lost."""
APPS = ("red", "green")
ABSENT = "no-such-egress"
DESTINATIONS = (
    list(NETWORKS.values()),
    [NETWORKS[4]],
    [NETWORKS[6]],
    [f"{ADDRESSES[4]}/32", f"{ADDRESSES[6]}/128"],
)
ARRANGEMENTS = 5
"""Each with some 45 packets."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    egresses: Sequence[EgressUnderTest]
    pods: Sequence[RunningPod]
    services: Sequence[Document]


@contextmanager
def arranged(world: World, dice: random.Random) -> Iterator[Arrangement]:
    """Up to two Egresses; three pods with some of them, or with one that does not exist; a Service for the pods of each
    label, of which a pod may have none.
    """
    with ExitStack() as stack:
        egresses = [
            stack.enter_context(world.egress(destinations=dice.choice(DESTINATIONS), replicas=dice.choice([1, 1, 2])))
            for _ in range(dice.randint(1, 2))
        ]
        pods = []
        for _ in range(3):
            wanted = dice.sample([egress.name for egress in egresses], dice.randint(0, len(egresses)))
            labels = {"app": dice.choice([*APPS, "of-nobody"])}
            pods.append(stack.enter_context(world.client(*wanted, station=dice.randrange(2), labels=labels)))
        if dice.random() < 0.5:
            world.annotate(dice.choice(pods), ABSENT)
        services = [stack.enter_context(service_of(world, app)) for app in APPS]
        yield Arrangement(egresses, pods, services)


@contextmanager
def service_of(world: World, app: str) -> Iterator[Document]:
    path = f"/api/v1/namespaces/{CLIENT_NAMESPACE}/services"
    ports = [{"name": "questions", "port": PORT, "protocol": "UDP"}]
    spec = {"selector": {"app": app}, "ports": ports, "ipFamilyPolicy": "RequireDualStack"}
    name = f"{app}-{secrets.token_hex(3)}"
    service = world.api.create(path, {"metadata": {"name": name}, "spec": spec})
    try:
        yield service
    finally:
        world.api.delete(f"{path}/{name}")


class Listeners:
    """Whoever may be asked: pods, nodes and the host outside hear what arrives at `PORT`, until `close`."""

    def __init__(self, namespaces: Iterable[Path]) -> None:
        self._sockets = []
        for namespace in namespaces:
            made = call_inside(namespace, lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
            made.bind(("::", PORT))
            self._sockets.append(made)

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def who_is_seen(self, pod: RunningPod, address: str) -> str | None:
        """The source that a packet of the pod arrives with; None where it does not."""
        question = secrets.token_bytes(8)
        with pod.socket(socket.SOCK_DGRAM, address) as asking:
            try:
                asking.sendto(question, (address, PORT))
            except OSError:
                return None  # the pod's own kernel has no way for it
            while ready := select.select(self._sockets, (), (), PATIENCE)[0]:
                for each in ready:
                    heard, peer = each.recvfrom(64)
                    if heard == question:
                        return str(peer[0]).removeprefix("::ffff:")
        return None


def agrees(document: TraceDocument, seen: str | None, egresses: Sequence[EgressUnderTest]) -> bool:
    """Of several routers a trace names one, and the packet takes any."""
    if document.verdict is not Verdict.DELIVERED:
        return document.verdict is Verdict.STOPPED and seen is None
    equals = [{address for router in egress.routers() for address in router.addresses.values()} for egress in egresses]
    return seen == document.source_seen or any({seen, document.source_seen} <= each for each in equals)


def destinations(world: World, arrangement: Arrangement, pod: RunningPod) -> list[str]:
    """All but the pod itself, and Services that it serves: these may lead it back to itself."""
    found = [*ADDRESSES.values(), *NEIGHBOURS.values()]
    found += [address for other in arrangement.pods if other is not pod for address in other.addresses.values()]
    found += [str(address) for station in world.stations for address in (station.ipv4, station.ipv6)]
    app = pod.document["metadata"]["labels"]["app"]
    for service in arrangement.services:
        if service["spec"]["selector"]["app"] != app:
            found += service["spec"]["clusterIPs"]
    return found


def compare(world: World, arrangement: Arrangement) -> list[str]:
    """Where they do not agree."""
    world.kubelet.sync()
    stations = {station.name: station for station in world.stations}
    reader = StageReader(
        lambda node: stations[node].wired.namespaces.entrance,
        lambda node: [str(pod.netns) for pod in world.kubelet.pods if pod.station.name == node],
    )
    asked = [(pod, address) for pod in arrangement.pods for address in destinations(world, arrangement, pod)]
    questions = [Question(pod.sandbox.pod, address, PORT) for pod, address in asked]
    documents = trace_packets(world.description, reader, questions)
    namespaces = [pod.netns for pod in arrangement.pods]
    namespaces += [station.wired.namespaces.net for station in world.stations]
    listeners = Listeners([*namespaces, world.external.netns])
    differences = []
    try:
        for (pod, address), question, document in zip(asked, questions, documents, strict=True):
            seen = listeners.who_is_seen(pod, address)
            if not agrees(document, seen, arrangement.egresses):
                differences.append(describe(question, document, seen))
    finally:
        listeners.close()
    return differences


def check(world: World, seed: int) -> None:
    """They agree once all is settled; on a machine that stands still for a moment, a packet may come too late."""
    with arranged(world, random.Random(seed)) as arrangement:
        wait_until_clean(lambda: compare(world, arrangement), after=f"COIL_TRACE_SEED={seed}")


def seeds() -> Sequence[int]:
    given = os.environ.get("COIL_TRACE_SEED")
    return [random.randrange(1 << 32) for _ in range(ARRANGEMENTS)] if given is None else [int(given)]


def test_what_is_told_is_what_the_receiver_sees(world: World, subtests: pytest.Subtests) -> None:
    for seed in seeds():
        with subtests.test(seed=seed):
            check(world, seed)
