"""A pod that talks to another one, or to a host outside, without a pause, and what the kernels hold of all pods: what
must not change.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from integration.cluster.image import BUSYBOX_IMAGE
from integration.cluster.node import Node
from integration.demo.reach import FETCH, url
from integration.kernel_state import POD_TABLE
from integration.nodes.coil_cluster import CoilCluster, Room
from integration.patience import wait_until

ASKING = "asking"
_LINK = ("ifname", "ifindex", "ifalias", "address", "link_netnsid", "mtu", "operstate")


@dataclass(frozen=True, slots=True)
class Talk:
    """In a room, the pod `ASKING` asks over HTTP, ten times a second."""

    room: Room

    @classmethod
    def begin(cls, room: Room) -> "Talk":
        """With the pod `answering`, on the other node; both are Ready."""
        here, there = room.coil.nodes
        room.run(room.pod("answering", there))
        [address] = [pod.ipv4 for pod in room.pods()]
        return cls.ask(room, here, url(address))

    @classmethod
    def ask(cls, room: Room, node: Node, *urls: str) -> "Talk":
        """With all of these in each turn. The pod runs on that node, and is Ready."""
        asked = "".join(f"{shlex.join((*FETCH, each))} > /dev/null || echo >> failed; " for each in urls)
        turn = f"{asked}echo >> asked; usleep 100000"
        container = {
            "name": ASKING,
            "image": BUSYBOX_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["busybox", "sh", "-c", f"cd /tmp; touch asked failed; while :; do {turn}; done"],
        }
        room.run(room.pod(ASKING, node, containers=[container]))
        return cls(room)

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """For the time of the block, and of a whole turn after it, no request may fail."""
        before = self._counts()
        yield
        last = self._counts()[0]
        # The first of these turns was under way when the block ended.
        wait_until(lambda: self._counts()[0] >= last + 2, what="the pods go on to talk")
        asked, failed = self._counts()
        assert failed == before[1], f"{failed - before[1]} requests failed in {asked - before[0]} turns"

    def find_gaps(self) -> list[str]:
        """As `Room.find_gaps`; all pods but the asking one answer."""
        return self.room.find_gaps([pod for pod in self.room.pods() if pod.name != ASKING])

    def _counts(self) -> tuple[int, int]:
        """Turns, and how many requests failed."""
        count = "cat /tmp/asked | wc -l; cat /tmp/failed | wc -l"
        asked, failed = map(int, self.room.kubectl("exec", ASKING, "--", "busybox", "sh", "-c", count).split())
        return asked, failed


def kernels(coil: CoilCluster) -> list[Any]:
    """The pods' links and routes on each node, with the links' indices and hardware addresses."""
    found = []
    for node in coil.nodes:
        kernel = coil.kernel(node)
        links = [link for link in kernel.ip("link", "show") if link.get("ifalias", "").startswith("COIL:")]
        found.append([[{name: link.get(name) for name in _LINK} for link in links], kernel.routes(POD_TABLE)])
    return found
