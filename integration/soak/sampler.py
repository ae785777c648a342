"""Looks again and again while everything is in motion, for what must not be so even for a moment."""

from collections.abc import Callable
from typing import Protocol

from integration.side_thread import SideThread
from integration.soak.history import History
from integration.soak.observation import ALIAS_PREFIX, Kernel, Objects
from integration.soak.verdict import Suspicion, find_passing_faults, find_suspicions
from integration.soak.witness import UnreachableError

INTERVAL = 1.0
"""Seconds between two looks; each costs some processes."""


class Looks(Protocol):
    """`integration.soak.witness.Witness` is one."""

    def kernel(self, name: str) -> Kernel: ...

    def objects(self) -> Objects: ...


class Sampler(SideThread):
    """Leaving it raises what was found."""

    def __init__(self, witness: Looks, nodes: list[str], *, history: History, failed: Callable[[], None]) -> None:
        super().__init__("sampler", failed=failed)
        self._witness = witness
        self._nodes = nodes
        self._history = history
        self.looks = 0

    def work(self) -> None:
        while not self.stopped.wait(INTERVAL):
            self.look()

    def look(self) -> None:
        """Once. Raises Violation."""
        for suspicion in find_suspicions({name: self._witness.kernel(name) for name in self._nodes}):
            if (proof := self._prove(suspicion)) is not None:
                address = suspicion.address.partition("/")[0]
                raise self._history.violation(proof, {address})
        try:
            objects = self._witness.objects()
        except UnreachableError:
            return
        if faults := find_passing_faults(objects):
            raise self._history.violation("\n".join(faults), set())
        self.looks += 1

    def _prove(self, suspicion: Suspicion) -> str | None:
        """One that has the address before and after another was seen to have it shares it with the other."""
        for first in suspicion.nodes:
            for second in suspicion.nodes:
                if first == second:
                    continue
                before = _holder(self._witness.kernel(first), suspicion.address)
                between = _holder(self._witness.kernel(second), suspicion.address)
                after = _holder(self._witness.kernel(first), suspicion.address)
                if before is not None and before == after and between is not None:
                    return f"{suspicion.address} leads to {before} on {first} and to {between} on {second}"
        return None


def _holder(kernel: Kernel, network: str) -> str | None:
    links = {veth.name: veth.alias for veth in kernel.veths if veth.alias.startswith(ALIAS_PREFIX)}
    return next((links[link] for there, link in kernel.pod_routes if there == network and link in links), None)
