"""The pools and the namespaces of a soak: which addresses a pod may get, and how that changes while it runs."""

import json
import threading
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from random import Random

from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import apply
from integration.patience import wait_until
from integration.soak.observation import GROUP, IPNetwork

SUBNETS: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "default": ({"ipv4": "10.91.0.0/25", "ipv6": "fd91::/121"},),
    "four": ({"ipv4": "10.92.0.0/27"}, {"ipv4": "10.92.1.0/29"}, {"ipv4": "10.92.2.0/29"}),
    "six": ({"ipv6": "fd93::/125"}, {"ipv6": "fd93::1:0/127"}, {"ipv6": "fd93::2:0/127"}),
}
"""By pool: what it begins with, and what is appended later, one by one."""

AMPLE = "default"
"""This pool has more blocks than all workers' pods can use."""

BLOCK_BITS = {"default": 2, "four": 1, "six": 1}

TIGHT = "six"
"""This pool has fewer blocks than the nodes want, and runs dry."""

NAMESPACES = {"plain": "", "fours": "four", "sixes": "six", "roving": "four"}
"""By namespace, the pool that its annotation names at first; without one it is `default`."""

ROVING = "roving"
_WEIGHTS = {"plain": 8, "fours": 5, "sixes": 3, ROVING: 4}


class PoolSetup:
    """One for a run. Thread-safe; changes are one thread's."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._lock = threading.Lock()
        self._allowed: dict[str, set[str]] = {name: {pool or "default"} for name, pool in NAMESPACES.items()}
        self._roving = NAMESPACES[ROVING]
        self._appended = dict.fromkeys(SUBNETS, 1)

    def furnish(self) -> None:
        """Make the pools and the namespaces."""
        for name, subnets in SUBNETS.items():
            spec = {"blockSizeBits": BLOCK_BITS[name], "subnets": [dict(subnets[0])]}
            apply(
                self._plane,
                {"apiVersion": f"{GROUP}/v2", "kind": "AddressPool", "metadata": {"name": name}, "spec": spec},
            )
        for name, pool in NAMESPACES.items():
            annotations = {f"{GROUP}/pool": pool} if pool else {}
            metadata = {"name": name, "annotations": annotations}
            apply(self._plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def draw_namespace(self, rng: Random) -> str:
        """A pod's namespace."""
        return rng.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]

    def allowed(self, namespace: str) -> frozenset[str]:
        """The pools that a pod of the namespace may have addresses of; more than one if it has been re-annotated."""
        with self._lock:
            return frozenset(self._allowed[namespace])

    def served(self) -> list[str]:
        """The namespaces whose pods are to get addresses now, whatever others have: not those of a dry pool."""
        with self._lock:
            pools = {**NAMESPACES, ROVING: self._roving}
        return [name for name, pool in pools.items() if pool != TIGHT]

    def switch(self, rng: Random) -> str:
        """Annotate the roving namespace with another pool, or with none; returns which."""
        pool = rng.choice(["", *SUBNETS])
        with self._lock:
            self._allowed[ROVING].add(pool or "default")
            self._roving = pool
        change = f"{GROUP}/pool={pool}" if pool else f"{GROUP}/pool-"
        self._plane.kubectl("annotate", "--overwrite", "namespace", ROVING, change)
        return pool or "default, by no annotation"

    def append(self, rng: Random) -> str:
        """Append a subnet to a pool that has one in store; returns what was done."""
        stored = [name for name, subnets in SUBNETS.items() if self._appended[name] < len(subnets)]
        if not stored:
            return "nothing, all have been appended"
        name = rng.choice(stored)
        subnet = SUBNETS[name][self._appended[name]]
        self._appended[name] += 1
        patch = json.dumps([{"op": "add", "path": "/spec/subnets/-", "value": dict(subnet)}])

        def patched() -> bool:
            try:
                self._plane.kubectl("patch", f"addresspools.{GROUP}", name, "--type=json", f"--patch={patch}")
            except KubectlError:
                return False  # the controller that judges pools may have been killed
            return True

        wait_until(patched, what=f"a subnet is appended to {name}")
        return f"{name} {' '.join(subnet.values())}"


def pool_of(addresses: frozenset[str]) -> str | None:
    """The pool that all these addresses are of, with one of each of its families; None when there is no such pool."""
    for name, subnets in SUBNETS.items():
        for subnet in subnets:
            networks: list[IPNetwork] = [ip_network(text) for text in subnet.values()]
            homes = [network for network in networks for text in addresses if ip_address(text) in network]
            if len(addresses) == len(networks) == len(homes) and set(homes) == set(networks):
                return name
    return None
