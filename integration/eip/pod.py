"""A pod of the stage: a namespace that a plain CNI has wired to its node, and its object."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from integration.apiserver.sandbox import Sandbox
from integration.egress.external_host import family_of
from integration.egress.pod import SECONDS
from integration.netns.netns import call_inside

GATEWAYS = {4: "169.254.1.1", 6: "fe80::1"}
"""The node's end of every pod's link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """`addresses` by IP version; `node` is its name; `link` the node's end."""

    sandbox: Sandbox
    node: str
    addresses: dict[int, str]
    link: str

    @property
    def netns(self) -> Path:
        return Path(self.sandbox.netns)

    @property
    def path(self) -> str:
        """In the API."""
        return f"/api/v1/namespaces/{self.sandbox.pod.namespace}/pods/{self.sandbox.pod.name}"

    def socket(self, kind: socket.SocketKind, address: str) -> socket.socket:
        """A socket of the pod's namespace, of that address's family."""
        return open_socket(self.netns, kind, address)


def open_socket(netns: Path, kind: socket.SocketKind, address: str) -> socket.socket:
    """One in that namespace, of that address's family."""
    made = call_inside(netns, lambda: socket.socket(family_of(address), kind))
    made.settimeout(SECONDS)
    return made


def pod_commands(addresses: Mapping[int, str]) -> list[str]:
    """What `ip -batch` makes of a new namespace with `eth0`."""
    commands = {
        4: [
            f"address add {addresses.get(4)}/32 dev eth0",
            f"route add {GATEWAYS[4]}/32 dev eth0",
            f"route add default via {GATEWAYS[4]} dev eth0",
        ],
        6: [f"address add {addresses.get(6)}/128 dev eth0 nodad", f"route add ::/0 via {GATEWAYS[6]} dev eth0"],
    }
    return ["link set lo up", "link set eth0 up", *chain.from_iterable(commands[version] for version in addresses)]
