"""Which programs are asked for their metrics, and what is made of the answers."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from coil.crd.resource import NamespacedName
from coil.kube.errors import Status, UnavailableError, error_of
from kubectl_coil.cluster import ExecError
from kubectl_coil.program import PROGRAMS, Program
from kubectl_coil.status.vitals import MOST_NODES, MOST_ROUTERS, Vitals, read_vitals, spread, survey
from tests.coil.kube.memory_api import MemoryApi
from tests.kubectl_coil.memory_nodes import node_dump
from tests.kubectl_coil.memory_reader import NOW, MemoryReader

FORBIDDEN = error_of(Status(kind="Status", message="pods/exec is forbidden"), code=403, what="exec")
METRICS = """
# TYPE informer_last_contact_timestamp_seconds gauge
informer_last_contact_timestamp_seconds{{resource="pods"}} {fresh}
informer_last_contact_timestamp_seconds{{resource="nodes"}} {stale}
coil_admission_certificate_end_timestamp_seconds {end}
coil_egress_peers 3.0
coil_node_egress_blocked_pods 2.0
"""


def metrics(*, fresh: object = 0, stale: object = 0, end: object = 0) -> str:
    return METRICS.format(fresh=fresh, stale=stale, end=end)


def pod(component: str, name: str, *, namespace: str = "coil-system", node: str = "n1", **spec: Any) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/name": "coil",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/instance": name,
    }
    containers = [{"name": "main", "args": ["--metrics-addr=:9000"]}]
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"nodeName": node, "containers": containers, **spec},
        "status": {"phase": "Running"},
    }


PROGRAM: Program = msgspec.convert(pod("coild", "d"), PROGRAMS.type)


class Cluster(MemoryReader):
    """Of its pods, those that have an answer give it, and the others have no metrics of interest."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        super().__init__(MemoryApi())
        self.answers: dict[str, str | Exception] = {}
        self.asked: list[str] = []
        for each in pods:
            self.api.put(PROGRAMS, each)

    async def execute(
        self, pod: NamespacedName, command: Sequence[str], *, container: str, seconds: float, limit: int
    ) -> bytes:
        assert command == ["coil-node-dump", "--parts=metrics", "--metrics-addr=:9000"]
        assert container == "main"
        self.asked.append(pod.name)
        answer = self.answers.get(pod.name, "")
        if isinstance(answer, Exception):
            raise answer
        return msgspec.json.encode(msgspec.structs.replace(node_dump(), metrics=answer), enc_hook=str)

    async def survey(self, *nodes: str) -> dict[str, Vitals]:
        found = await survey(self, homes=["coil-system"], nodes=nodes, now=NOW)
        return {each.program.metadata.name: each for each in found}


def test_the_oldest_contact_and_the_rest_are_read() -> None:
    ago = (NOW - timedelta(seconds=70)).timestamp()
    found = read_vitals(PROGRAM, metrics(fresh=NOW.timestamp(), stale=ago, end=NOW.timestamp()), NOW)
    assert found == Vitals(
        program=PROGRAM, cache_age=timedelta(seconds=70), certificate_end=NOW, client_addresses=3, blocked_pods=2
    )


def test_clocks_that_differ_make_no_negative_age() -> None:
    ahead = (NOW + timedelta(seconds=5)).timestamp()
    found = read_vitals(PROGRAM, metrics(fresh=ahead, stale=ahead), NOW)
    assert (found.cache_age, found.certificate_end) == (timedelta(), None)


@pytest.mark.parametrize(
    "text", ["coil_egress_peers NaN", "coil_egress_peers +Inf", metrics(fresh=1e300, stale=1e300), metrics(end="x")]
)
def test_what_is_no_number_of_use_is_refused(text: str) -> None:
    """Whoever runs in a router pod writes what he likes."""
    with pytest.raises(ValueError, match=r".+"):
        read_vitals(PROGRAM, text, NOW)


async def test_controllers_nodes_and_one_router_of_each_egress_are_asked() -> None:
    cluster = Cluster(
        pod("ipam-controller", "c-1"),
        pod("egress-controller", "c-2", node="n9"),
        pod("coild", "d-1"),
        pod("coild", "d-9", node="n9"),
        pod("coild", "forged", namespace="tenant"),
        pod("egress", "r-1", namespace="internet"),
        pod("egress", "r-2", namespace="dmz"),
    )
    found = await cluster.survey("n1")
    assert sorted(found) == sorted(cluster.asked) == ["c-1", "c-2", "d-1", "r-1", "r-2"]


async def test_a_large_cluster_is_sampled() -> None:
    nodes = [f"n{number:04}" for number in range(2000)]
    routers = [pod("egress", f"r-{number}", namespace="internet") for number in range(100)]
    cluster = Cluster(*(pod("coild", f"d-{node}", node=node) for node in nodes), *routers)
    found = await cluster.survey(*nodes)
    assert len(found) == MOST_NODES + MOST_ROUTERS
    assert {"d-n0000", "d-n1999"} <= set(found)
    assert spread(nodes[:3], MOST_NODES) == nodes[:3]


async def test_who_may_not_ask_learns_nothing() -> None:
    cluster = Cluster(pod("coild", "d-1"), pod("egress", "r-1", namespace="internet"))
    cluster.answers = {"d-1": FORBIDDEN, "r-1": "coil_egress_peers 4"}
    assert {name: each.client_addresses for name, each in (await cluster.survey("n1")).items()} == {"r-1": 4}


@pytest.mark.parametrize(
    "answer", [ExecError("no such program"), UnavailableError("exec: timeout"), "coil_egress_peers NaN"]
)
async def test_who_is_silent_is_named(answer: str | Exception) -> None:
    cluster = Cluster(pod("coild", "d-1"))
    cluster.answers = {"d-1": answer}
    assert (await cluster.survey("n1"))["d-1"].error
