"""`kubectl coil trace` of packets on a stage: its own code, over the stage's API server and its nodes' namespaces."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import msgspec

from coil.kube.client_config import ClientConfig
from coil.page.node_dump import NodeDump, Part
from integration.apiserver.sandbox import PodName
from integration.egress.api import Access
from kubectl_coil.cluster import Cluster
from kubectl_coil.trace.cluster_view import ClusterView
from kubectl_coil.trace.document import TraceDocument
from kubectl_coil.trace.walk import Walk

SECONDS: Final = 240
_MOUNT: Final = """
set -e
umount --all --types nsfs
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
number=0
while [ "$1" != -- ]; do
    number=$((number + 1))
    touch "/run/netns/$number"
    mount --bind "$1" "/run/netns/$number"
    shift
done
shift
exec "$@"
"""
"""Mounts the namespaces of a node's pods, as a runtime does, and no others: whatever else was mounted when the stage
copied the machine's mounts are namespaces of other tests.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A UDP packet of a pod."""

    pod: PodName
    destination: str
    port: int


@dataclass(frozen=True, slots=True)
class StageReader:
    """A `NodeReader`: `coil-node-dump` runs in a node's namespaces, as in a pod of its network.

    `entrance_of` is how to get into those of a node, `pods_of` the paths of its pods' namespaces.
    """

    entrance_of: Callable[[str], Sequence[str]]
    pods_of: Callable[[str], Iterable[str]]

    async def read(self, node: str, parts: Collection[Part]) -> NodeDump:
        inside = ["unshare", "--mount", "--propagation=private", "sh", "-c", _MOUNT, "sh", *self.pods_of(node), "--"]
        dump = [sys.executable, "-m", "coil_node_dump", f"--parts={','.join(sorted(parts))}"]
        process = await asyncio.create_subprocess_exec(
            *self.entrance_of(node), *inside, *dump, f"--time-limit={SECONDS}s", stdout=subprocess.PIPE
        )
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
        found = msgspec.json.decode(output, type=NodeDump)
        assert found.troubles == ()
        return found


def trace_packets(access: Access, reader: StageReader, questions: Sequence[Question]) -> list[TraceDocument]:
    """What is told of each; objects and nodes are read once."""
    config = ClientConfig(
        server=f"https://{access.address}:{access.port}",
        authority=access.authority,
        certificate=access.admin_certificate,
        key=access.admin_key,
    )
    return asyncio.run(_trace(config, reader, questions))


async def _trace(config: ClientConfig, reader: StageReader, questions: Sequence[Question]) -> list[TraceDocument]:
    async with Cluster.connect(config, timeout=SECONDS) as cluster:
        view = ClusterView(cluster, reader)
        return [
            await Walk(
                view,
                await view.pod(question.pod.namespace, question.pod.name),
                ip_address(question.destination),
                "udp",
                question.port,
            ).trace()
            for question in questions
        ]


def describe(question: Question, document: TraceDocument, seen: object) -> str:
    """One line about what was told and seen, for who reads a failure."""
    hops = "; ".join(f"{hop.at} {hop.action} ({hop.by})" for hop in document.hops)
    return (
        f"{question.pod.name} to {question.destination}: seen as {seen}, told: {document.verdict} "
        f"{document.source_seen} {document.reason}: {hops}"
    )
