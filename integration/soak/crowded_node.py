"""A node whose coild serves one pod after the other, many at a time; and what may be left of them.

Real etcd, API server and ipam-controller. The pool is dual stack, and its blocks have more addresses than can rest at a
time: so a pod waits for nobody but coild, and the block goes when no pod is left.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from integration.apiserver.bare_node import BareNode
from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.sandbox import PodName, Sandbox
from integration.deployment import coild_command
from integration.kernel_state import KernelState
from integration.patience import wait_until_clean
from integration.service import Service
from integration.soak.counted_coild import count_blocks
from integration.soak.crowd import Crowd
from integration.soak.footprint import Footprint, count_lasting
from integration.soak.inventory import differences, take_inventory, without_namespaces
from integration.soak.witness import UnreachableError, Witness

REPOSITORY = Path(__file__).resolve().parents[2]
NAMESPACE = "crowded"
SUBNET = {"ipv4": "10.91.0.0/20", "ipv6": "fd91::/116"}
BITS = 10
COOLING = "--cooling=500ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedNode:
    """`untouched` is what the kernel held before the first pod, in the node's namespace and in each sandbox."""

    node: BareNode
    coild: Service
    count: Path
    crowd: Crowd
    sandboxes: Sequence[Sandbox]
    untouched: frozenset[str]
    empty: Sequence[frozenset[str]]

    @property
    def footprint(self) -> Footprint:
        """What coild takes now; its connections to the API server, which are kept for a while, are left out."""
        pid = self.coild.process.pid
        return replace(Footprint.of(pid), descriptors=count_lasting(pid))

    def count_blocks(self) -> int:
        """How many blocks of memory coild's interpreter has given out and cannot collect."""
        return count_blocks(self.count)

    def come_to_rest(self, after: str) -> None:
        """Return when nothing is left of any pod. Raises AssertionError with what stays."""
        wait_until_clean(self._remains, after=after)

    def end_sandboxes(self) -> None:
        """Destroy them, and return when the node's kernel is as it was before the first pod.

        Raises AssertionError, also for what pods have left in them.
        """
        for sandbox, before in zip(self.sandboxes, self.empty, strict=True):
            assert _remains_in(sandbox.kernel, before=before) == []
            sandbox.destroy()
        wait_until_clean(
            lambda: differences(take_inventory(self.node.kernel), self.untouched), after="all sandboxes are gone"
        )

    def _remains(self) -> list[str]:
        try:
            ledger = Witness(self.node.plane, [self.node]).ledger(self.node.name)
        except UnreachableError as error:
            return [str(error)]
        found = [f"in coild's ledger: {container}" for container in ledger.holders]
        found += [f"a block: {block['metadata']['name']}" for block in self.node.objects("addressblocks")]
        return found + _remains_in(self.node.kernel, before=self.untouched)


def _remains_in(kernel: KernelState, *, before: frozenset[str]) -> list[str]:
    # Node and sandbox have been linked, so the kernel knows one in the other for as long as both live.
    return differences(without_namespaces(take_inventory(kernel)), without_namespaces(before))


def _counted(command: Sequence[str], count: Path) -> list[str]:
    python, switch, _, *flags = command
    # The module is part of no installation, and coild's folder is not this one.
    paths = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return ["env", f"PYTHONPATH={paths}", python, switch, "integration.soak.counted_coild", str(count), *flags]


@contextmanager
def crowd_a_node(*, width: int) -> Iterator[CrowdedNode]:
    """With so many sandboxes. Takes some seconds; everything ends with the context."""
    with PlanePool() as planes, planes.lend() as plane, BareNode.up(plane) as node:
        node.make_pool("default", SUBNET, bits=BITS)
        node.make_namespace(NAMESPACE)
        node.start_controller()
        count = node.socket.with_suffix(".count")
        command = coild_command(node.plane, socket=node.socket, flags=[COOLING])
        coild = node.start_daemon(_counted(command, count))
        coild.wait_ready()
        # coild does this with the first pod, and the kernel then has anycast addresses (RFC 4291, section 2.6.1).
        node.namespaces.set_sysctls(["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
        untouched = take_inventory(node.kernel)
        sandboxes = [
            node.make_sandbox(PodName(NAMESPACE, f"sandbox-{number}"), container_id=secrets.token_hex(32))
            for number in range(width)
        ]
        yield CrowdedNode(
            node=node,
            coild=coild,
            count=count,
            crowd=Crowd(node.socket, sandboxes, namespace=NAMESPACE),
            sandboxes=sandboxes,
            untouched=untouched,
            empty=[take_inventory(sandbox.kernel) for sandbox in sandboxes],
        )
