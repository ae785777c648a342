"""Who leads and which node carries the floating addresses, looked at all the time: never two at once.

A look goes round the nodes and back to the first, so that a handover between two of its questions is not taken for two
holders: only who still holds it after another one had it is named.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from integration.cluster.node import Node, NodeCommandError
from integration.kernel_state import KernelState
from integration.nodes.coil_cluster import CoilCluster
from integration.side_thread import SideThread

LEADER_PORTS: Final = {"coil-ipam-controller": 9386, "coil-egress-controller": 9396}
EIP_DEVICE: Final = "egress.eip"
_LEADS: Final = "leader_election_master_status{"
_PAUSE: Final = 0.25


class Witness(SideThread):
    """A context manager; `overlaps` and `holders` may be read after it."""

    def __init__(self, coil: CoilCluster) -> None:
        super().__init__("witness")
        self.overlaps: list[str] = []
        self.holders: dict[str, list[str]] = {}
        """By what is held: the nodes that have held it, one after the other, without repetitions."""
        self._nodes = coil.nodes

    def work(self) -> None:
        while not self.stopped.wait(_PAUSE):
            for program, port in LEADER_PORTS.items():
                self._look(program, lambda node, port=port: leads(node, port))  # type: ignore[misc]
            self._look("floating addresses", carries)

    def _look(self, what: str, holds: Callable[[Node], bool]) -> None:
        found = look_around(self._nodes, holds)
        if len(found) > 1:
            self.overlaps.append(f"{what} at {time.time():.1f}: {', '.join(found)}")
        sequence = self.holders.setdefault(what, [])
        if found and sequence[-1:] != found[-1:]:
            sequence.append(found[-1])


def look_around(nodes: Sequence[Node], holds: Callable[[Node], bool]) -> list[str]:
    """The names of the nodes that hold it: of several, those that still do when asked again, and the last."""
    first = [node for node in nodes if holds(node)]
    return [node.name for node in first[:-1] if holds(node)] + [node.name for node in first[-1:]]


def leads(node: Node, port: int) -> bool:
    """Whether the controller on the node says that it leads; one that does not answer does not."""
    return any(
        line.startswith(_LEADS) and float(line.split()[-1]) == 1 for line in metrics_page(node, port).splitlines()
    )


def carries(node: Node) -> bool:
    """Whether the node's kernel has a floating address."""
    addresses = KernelState(str(node.netns)).ip("address", "show", "scope", "global")
    return any(entry["ifname"] == EIP_DEVICE and entry["addr_info"] for entry in addresses)


def metrics_page(node: Node, port: int) -> str:
    """What a program serves on the node's localhost; empty when it does not answer."""
    try:
        return node.run(["curl", "--silent", "--max-time", "3", f"http://127.0.0.1:{port}/metrics"])
    except NodeCommandError:
        return ""
