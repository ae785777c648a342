"""Looks at a running soak: asks the API server as administrator, and iproute2 in the nodes' namespaces."""

import json
import subprocess
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

from integration.apiserver.bare_node import GROUP_PATH, UPLINK, BareNode
from integration.cluster.control_plane import ControlPlane
from integration.soak.observation import (
    Kernel,
    Ledger,
    Objects,
    Observation,
    parse_block,
    parse_kernel,
    parse_ledger,
    parse_pool,
)

LEDGER_URL = "http://127.0.0.1:6666/ip-manager"


class UnreachableError(Exception):
    """The API server, or a coild, did not answer, or not with an answer."""


class Witness:
    """Looks at one thing after the other: it is a picture of one moment only while nothing changes."""

    def __init__(self, plane: ControlPlane, nodes: Sequence[BareNode]) -> None:
        self._plane = plane
        self._nodes = {node.name: node for node in nodes}

    def observe(self) -> Observation:
        """Everything. Raises UnreachableError."""
        kernels = {name: self.kernel(name) for name in self._nodes}
        ledgers = {name: self.ledger(name) for name in self._nodes}
        return Observation(objects=self.objects(), kernels=kernels, ledgers=ledgers)

    def objects(self) -> Objects:
        """What the API server holds. Raises UnreachableError."""
        # Blocks before pools: a block is never older than the subnet that it is of.
        blocks = self._list(f"{GROUP_PATH}/addressblocks")
        pools = self._list(f"{GROUP_PATH}/addresspools")
        return Objects(
            pools=tuple(map(parse_pool, pools)),
            blocks=tuple(map(parse_block, blocks)),
            requests=tuple(request["metadata"]["name"] for request in self._list(f"{GROUP_PATH}/blockrequests")),
            nodes=frozenset(node["metadata"]["name"] for node in self._list("/api/v1/nodes")),
        )

    def kernel(self, name: str) -> Kernel:
        """What the kernel of that node holds."""
        kernel = self._nodes[name].kernel
        return parse_kernel(
            links=kernel.ip("link", "show"),
            routes=[route for family in ("-4", "-6") for route in kernel.ip(family, "route", "show", "table", "all")],
            rules={family: kernel.ip(f"-{family}", "rule", "show") for family in (4, 6)},
            uplink=UPLINK,
        )

    def ledger(self, name: str) -> Ledger:
        """What the coild of that node says. Raises UnreachableError."""
        try:
            said = self._nodes[name].kernel.run("busybox", "wget", "-q", "-O", "-", LEDGER_URL)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise UnreachableError(f"coild on {name}: {error}") from error
        return parse_ledger(json.loads(said))

    def _list(self, path: str) -> list[dict[str, Any]]:
        try:
            status, body = self._plane.request("GET", path)
        except (OSError, HTTPException) as error:
            raise UnreachableError(f"{path}: {error}") from error
        if status != 200:
            raise UnreachableError(f"{path}: {status}")
        items: list[dict[str, Any]] = json.loads(body)["items"]
        return items
