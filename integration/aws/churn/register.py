"""Which pods are up, and which addresses were a pod's a moment ago: what everybody who watches compares with.

A pod is up from when its ADD was answered until its DEL is about to begin. In coild and in the kernel it is so a little
longer at both ends; whatever contradicts a pod that is up here is wrong, then, however late it is told.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address


@dataclass(frozen=True, slots=True)
class WiredPod:
    """One that is up. `link` is its host end, whose name no other pod has."""

    name: str
    node: str
    instance: str
    address: IPv4Address
    link: str

    def __str__(self) -> str:
        return f"{self.name} on {self.node}"


class PodRegister:
    """Thread-safe. `cooldown` in seconds."""

    def __init__(self, *, cooldown: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.failed = threading.Event()
        """Set with the first violation, or by whoever cannot go on."""
        self.reused = 0
        """How many pods have had an address that another one had before."""
        self.moved = 0
        """Of these, how many on another node."""
        self._cooldown = cooldown
        self._clock = clock
        self._lock = threading.Lock()
        self._up: dict[IPv4Address, WiredPod] = {}
        self._left: dict[IPv4Address, tuple[float, WiredPod]] = {}
        self._violations: dict[str, None] = {}

    def enter(self, pod: WiredPod) -> None:
        """Its ADD has been answered."""
        with self._lock:
            if (other := self._up.get(pod.address)) is not None:
                self._accuse(f"{pod.address} is {pod}'s, and {other}'s")
            if (left := self._left.pop(pod.address, None)) is not None:
                since, former = left
                self.reused += 1
                self.moved += former.node != pod.node
                if (rested := self._clock() - since) < self._cooldown:
                    self._accuse(f"{pod} has {pod.address} {rested:.1f} s after {former}")
            self._up[pod.address] = pod

    def leave(self, pod: WiredPod) -> None:
        """Its end is about to begin."""
        with self._lock:
            if self._up.get(pod.address) == pod:
                del self._up[pod.address]
            self._left[pod.address] = (self._clock(), pod)

    def pods(self) -> frozenset[WiredPod]:
        """Those that are up."""
        with self._lock:
            return frozenset(self._up.values())

    def holder(self, address: IPv4Address, *, node: str) -> WiredPod | None:
        """The pod of that node that is up with the address."""
        with self._lock:
            pod = self._up.get(address)
        return pod if pod is not None and pod.node == node else None

    def cooling(self) -> list[WiredPod]:
        """The pods that have left so recently that nobody may have their addresses, nor EC2 get them back."""
        with self._lock:
            now = self._clock()
            return [pod for since, pod in self._left.values() if now - since < self._cooldown]

    def accuse(self, violation: str) -> None:
        """Note what must not be. Told again, it is the same one."""
        with self._lock:
            self._accuse(violation)

    @property
    def violations(self) -> list[str]:
        """In their order."""
        with self._lock:
            return list(self._violations)

    def _accuse(self, violation: str) -> None:
        self._violations.setdefault(violation)
        self.failed.set()
