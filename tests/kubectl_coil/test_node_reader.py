"""Nodes by a program in the pod of their coild: which pod, what becomes of its answer, and of refusals."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from coil.crd.builtin import CLUSTER_ROLE_BINDINGS, PODS
from coil.crd.resource import NamespacedName
from coil.kube.errors import ForbiddenError, Status, error_of
from coil.page.node_document import AddressCounts, NodeDocument
from coil.page.node_dump import Part
from kubectl_coil.cluster import ExecError
from kubectl_coil.node_reader import ExecNodeReader, NodeUnreadableError, ledger_of
from tests.coil.kube.memory_api import MemoryApi
from tests.kubectl_coil.memory_nodes import node_dump
from tests.kubectl_coil.memory_reader import NOW, MemoryReader

PAGE = NodeDocument(node="n1", at=NOW, addresses=AddressCounts(total=4))


class Pods(MemoryReader):
    """A cluster whose pods answer all commands alike."""

    def __init__(self, api: MemoryApi) -> None:
        super().__init__(api)
        self.answer: bytes | Exception = msgspec.json.encode(node_dump(PAGE), enc_hook=str)
        self.executed: list[tuple[NamespacedName, tuple[str, ...], str]] = []

    async def execute(
        self, pod: NamespacedName, command: Sequence[str], *, container: str, seconds: float, limit: int
    ) -> bytes:
        self.executed.append((pod, tuple(command), container))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def coild(name: str, *, node: str = "n1", namespace: str = "coil", phase: str = "Running") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "coil", "app.kubernetes.io/component": "coild"}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


@pytest.fixture
def pods() -> Pods:
    api = MemoryApi()
    subject = {"kind": "ServiceAccount", "name": "coild", "namespace": "coil"}
    api.put(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": "coild"}, "subjects": [subject]})
    api.put(PODS, coild("coild-0", phase="Failed"))
    api.put(PODS, coild("coild-1"))
    api.put(PODS, coild("coild-2", node="n2"))
    api.put(PODS, coild("coild-3", namespace="tenant"))
    return Pods(api)


async def test_the_program_runs_beside_the_node_s_coild(pods: Pods) -> None:
    dump = await ExecNodeReader(pods).read("n1", [Part.TABLES, Part.NODE])
    assert ledger_of(dump, "n1") == PAGE
    command = ("coil-node-dump", "--parts=node,tables")
    assert pods.executed == [(NamespacedName("coil", "coild-1"), command, "coild")]


async def test_without_coild_it_runs_beside_the_eip_agent() -> None:
    api = MemoryApi()
    subject = {"kind": "ServiceAccount", "name": "coil-egress-node", "namespace": "coil"}
    api.put(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": "coil-egress-node"}, "subjects": [subject]})
    agent = coild("agent-1")
    agent["metadata"]["labels"]["app.kubernetes.io/component"] = "egress-agent-node"
    api.put(PODS, agent)
    pods = Pods(api)
    await ExecNodeReader(pods).read("n1", [Part.NODE])
    assert pods.executed == [
        (NamespacedName("coil", "agent-1"), ("coil-node-dump", "--parts=node"), "coil-egress-agent-node")
    ]


async def test_a_pod_of_a_tenant_is_never_taken_for_coild(pods: Pods) -> None:
    pods.api.put(PODS, coild("coild-4", node="n4", namespace="tenant"))
    with pytest.raises(NodeUnreadableError, match="n4 could not be asked: neither coild nor an EIP agent runs on it"):
        await ExecNodeReader(pods).read("n4", [Part.NODE])
    assert pods.executed == []


REFUSAL = error_of(Status(kind="Status", message="pods is forbidden"), code=403, what="exec")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (REFUSAL, "ask for the ClusterRole coil-node-reader"),
        (ExecError("exit code 127"), "exit code 127"),
        (b"{", "cannot be read"),
        (msgspec.json.encode(node_dump(version=9), enc_hook=str), "version 9"),
    ],
)
async def test_what_is_no_answer_is_told(pods: Pods, answer: bytes | Exception, said: str) -> None:
    assert isinstance(REFUSAL, ForbiddenError)
    pods.answer = answer
    with pytest.raises(NodeUnreadableError, match=said):
        await ExecNodeReader(pods).read("n1", [Part.NODE])


def test_a_page_that_is_not_there_or_another_s() -> None:
    with pytest.raises(NodeUnreadableError, match="inspect-page-addr=off"):
        ledger_of(node_dump(), "n1")
    with pytest.raises(NodeUnreadableError, match="coild's page: timed out"):
        ledger_of(node_dump(troubles=("coild's page: timed out",)), "n1")
    with pytest.raises(NodeUnreadableError, match="another version"):
        ledger_of(node_dump(PAGE.addresses), "n1")
