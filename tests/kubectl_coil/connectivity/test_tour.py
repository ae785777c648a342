"""A connectivity test against a cluster in memory: what is made, what is told of what fails, and what is left."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from coil.crd.builtin import NAMESPACES
from coil.crd.resource import NamespacedName, Resource
from coil.kube.errors import ForbiddenError, Status, UnavailableError, error_of
from coil.page.probe_answer import ProbeAnswer
from kubectl_coil.cluster import ExecError
from kubectl_coil.connectivity import site as site_module
from kubectl_coil.connectivity import tour as tour_module
from kubectl_coil.connectivity.document import CheckDocument, Outcome
from kubectl_coil.connectivity.resources import NODES, PODS, CandidateNode
from kubectl_coil.connectivity.site import PREFIX, Site, open_site
from kubectl_coil.connectivity.tour import CLIENT, FAR, HOST_PORT, NEAR, OutsideServer, Tour
from kubectl_coil.trace.target import parse_destination
from tests.coil.kube.memory_api import Call, MemoryApi, Moment
from tests.kubectl_coil.memory_reader import MemoryReader

ADDRESSES = {CLIENT: "10.0.0.1", NEAR: "10.0.0.2", FAR: "10.0.1.1", HOST_PORT: "10.0.1.2"}
READY = [{"type": "Ready", "status": "True"}]


def node(name: str, address: str) -> dict[str, Any]:
    status = {"conditions": READY, "addresses": [{"type": "InternalIP", "address": address}]}
    return {"metadata": {"name": name}, "status": status}


class Cluster(MemoryReader):
    """Its pods are ready at once, but for those of which `statuses` says otherwise, and answer as their peers would."""

    def __init__(self) -> None:
        super().__init__(MemoryApi())
        self.statuses: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, tuple[str, str]] = {}
        """By target: as whom it is seen, and the error."""
        self.failure: Exception | None = None
        self.asked: list[str] = []
        for name, address in (("n1", "192.0.2.1"), ("n2", "192.0.2.2")):
            self.api.put(NODES, node(name, address))

    async def create(self, resource: Resource[Any], body: Any, *, namespace: str = "") -> Any:
        name = body["metadata"]["name"]
        if resource.plural == "pods":
            ready = {"phase": "Running", "conditions": READY, "podIPs": [{"ip": ADDRESSES[name]}]}
            body = {**body, "status": self.statuses.get(name, ready)}
        if resource.plural == "services":
            body = {**body, "spec": {**body["spec"], "clusterIPs": ["10.96.0.7"]}}
        return await super().create(resource, body, namespace=namespace)

    async def execute(
        self, pod: NamespacedName, command: Sequence[str], *, container: str, seconds: float, limit: int
    ) -> bytes:
        if self.failure is not None:
            raise self.failure
        targets = [each for each in command if "://" in each]
        self.asked += targets
        found = []
        for target in targets:
            usual = ("", "ECONNREFUSED") if target.endswith(":8081") else (ADDRESSES[pod.name], "")
            answer, error = self.answers.get(target, usual)
            found.append(ProbeAnswer(target=target, answer=answer, error=error, seconds=0.001))
        return msgspec.json.encode(found)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "_PAUSE", 0.001)
    monkeypatch.setattr(tour_module, "_SETTLE_PAUSE", 0.001)
    monkeypatch.setattr(tour_module, "_SETTLE_SECONDS", 0.01)


async def tour(cluster: Cluster, *outside: OutsideServer, seconds: float = 1.0) -> list[CheckDocument]:
    nodes: list[CandidateNode] = await cluster.list(NODES)
    async with open_site(cluster, image="coil:1") as site:
        return [check async for check in Tour(site, nodes, outside, seconds).run()]


def failures(checks: Sequence[CheckDocument]) -> dict[str, str]:
    return {check.name: check.detail for check in checks if check.outcome is Outcome.FAILED}


async def test_all_is_fine_and_nothing_is_left() -> None:
    cluster = Cluster()
    checks = await tour(cluster)
    assert failures(checks) == {}
    assert [check.name for check in checks if check.outcome is Outcome.SKIPPED] == [
        "names of Services",
        "outside of the cluster",
    ]
    assert "tcp://10.0.1.1:8080" in cluster.asked
    assert "udp://10.96.0.7:8080" in cluster.asked
    assert not await cluster.list(NAMESPACES)


async def test_a_source_that_is_masqueraded_is_a_failure() -> None:
    cluster = Cluster()
    cluster.answers["tcp://10.0.1.1:8080"] = "192.0.2.1", ""
    assert failures(await tour(cluster)) == {"a pod on another node, TCP": "seen as 192.0.2.1, not 10.0.0.1"}


async def test_a_service_is_there_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not settle is asked about once."""

    class Slow(Cluster):
        async def execute(
            self, pod: NamespacedName, command: Sequence[str], *, container: str, seconds: float, limit: int
        ) -> bytes:
            output = await super().execute(pod, command, container=container, seconds=seconds, limit=limit)
            if self.asked.count("tcp://10.96.0.7:8080") > 2:
                self.answers.pop("tcp://10.96.0.7:8080", None)
            return output

    monkeypatch.setattr(tour_module, "_SETTLE_SECONDS", 60.0)
    cluster = Slow()
    cluster.answers["tcp://10.96.0.7:8080"] = "", "ECONNREFUSED"
    cluster.answers["tcp://10.0.0.2:8080"] = "", "ETIMEDOUT"
    assert failures(await tour(cluster)) == {"a pod on its node, TCP": "ETIMEDOUT"}
    assert cluster.asked.count("tcp://10.96.0.7:8080") == 4
    assert cluster.asked.count("tcp://10.0.0.2:8080") == cluster.asked.count("udp://10.96.0.7:8080") == 1


async def test_a_service_that_does_not_come() -> None:
    cluster = Cluster()
    cluster.answers["tcp://10.96.0.7:8080"] = "", "ECONNREFUSED"
    assert failures(await tour(cluster)) == {"a Service, TCP": "ECONNREFUSED"}


async def test_silence_where_nobody_listens_is_a_failure() -> None:
    cluster = Cluster()
    cluster.answers["connect://10.0.0.2:8081"] = "", "ETIMEDOUT"
    found = failures(await tour(cluster))
    assert found == {"a pod on its node refuses where nobody listens": "fails with ETIMEDOUT, not ECONNREFUSED"}


async def test_pods_that_do_not_start() -> None:
    cluster = Cluster()
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    cluster.statuses[FAR] = {"phase": "Pending", "containerStatuses": [waiting]}
    cluster.statuses[HOST_PORT] = {"phase": "Failed", "reason": "NodePorts", "message": "the port is taken"}
    checks = await tour(cluster, seconds=0.05)
    assert failures(checks) == {
        "the pod far starts": "ImagePullBackOff: no such image",
        "the pod host-port starts": "NodePorts: the port is taken",
    }
    assert not any(":8080" in each and "10.0.1." in each for each in cluster.asked)


async def test_without_its_client_nothing_is_tried() -> None:
    cluster = Cluster()
    cluster.statuses[CLIENT] = {"phase": "Pending"}
    assert failures(await tour(cluster, seconds=0.01)) == {"the pod client starts": "it is Pending"}
    assert cluster.asked == []


async def test_one_node() -> None:
    cluster = Cluster()
    cluster.api.remove(NODES, "n2")
    checks = await tour(cluster)
    assert failures(checks) == {}
    assert "a pod on another node" in {check.name for check in checks if check.outcome is Outcome.SKIPPED}


@pytest.mark.parametrize(
    "failure",
    [
        ExecError("no such program"),
        error_of(Status(kind="Status", message="pods is forbidden"), code=403, what="exec"),
        UnavailableError("exec: reset"),
    ],
)
async def test_a_client_that_cannot_be_asked(failure: Exception) -> None:
    cluster = Cluster()
    cluster.failure = failure
    found = failures(await tour(cluster))
    assert found["a pod on its node, TCP"].startswith("the pod client could not be asked: ")


async def test_outside_it_is_seen_as_trace_says() -> None:
    """Which cannot be known here, as no coild is there: any answer will do."""
    cluster = Cluster()
    place = parse_destination("203.0.113.5:8080")
    server = OutsideServer(place.address, 8080)
    assert failures(await tour(cluster, server)) == {}
    cluster.answers["tcp://203.0.113.5:8080"] = "", "ETIMEDOUT"
    assert failures(await tour(cluster, server)) == {"outside": "ETIMEDOUT"}


async def test_admission_may_want_an_account_that_comes_a_moment_later() -> None:
    cluster = Cluster()
    refusal = error_of(Status(kind="Status", message="no service account"), code=403, what="POST pods")
    refusals = [refusal, refusal]

    async def gate(call: Call, moment: Moment) -> None:
        if (call.verb, call.plural, moment) == ("create", "pods", Moment.BEFORE) and refusals:
            raise refusals.pop()

    cluster.gate = gate
    assert failures(await tour(cluster)) == {}


async def test_who_may_not_create_pods_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "_ACCOUNT_SECONDS", 0.0)
    cluster = Cluster()
    cluster.refusals["create", "pods"] = error_of(Status(kind="Status", message="no"), code=403, what="POST pods")
    with pytest.raises(ForbiddenError):
        await tour(cluster)
    assert not await cluster.list(NAMESPACES)


async def test_cancelled_it_takes_the_namespace_away() -> None:
    cluster = Cluster()
    cluster.statuses[CLIENT] = {"phase": "Pending"}
    running = asyncio.create_task(tour(cluster, seconds=600.0))
    while not await cluster.list(PODS):  # noqa: ASYNC110 - an API server has no event for it
        await asyncio.sleep(0)
    [namespace] = await cluster.list(NAMESPACES)
    assert namespace.metadata.name.startswith(PREFIX)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not await cluster.list(NAMESPACES)


async def test_a_namespace_that_stays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "_GONE_SECONDS", 0.01)

    class Sticky(Cluster):
        async def delete(self, resource: Resource[Any], name: str, *, namespace: str = "", uid: str = "") -> None:
            pass

    cluster = Sticky()
    kept: list[Site] = []
    async with open_site(cluster, image="coil:1") as site:
        kept.append(site)
    assert kept[0].left_over
