"""A kubelet and its runtime, imitated: pods come and go, and whatever fails is tried again the way they do it.

After a failed ADD a kubelet has the sandbox torn down (DEL until it succeeds) and makes another one, with a container
ID of its own. Runtimes repeat a DEL, repeat an ADD, or lose the namespace first (a reboot of the sandbox, an impatient
teardown). What happens to which pod follows from the seed alone; only the interleaving does not.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from random import Random
from typing import Any

from integration.apiserver.bare_node import BareNode
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.apiserver.tally import Operation, Tally

PATIENCE = 300.0
"""Seconds in which a pod must come up, or go, whatever dies meanwhile. Only a failure takes so long."""

PAUSE = 0.1
"""Seconds between two attempts; a real kubelet takes a second and more."""


class Farewell(Enum):
    """How a pod ends."""

    DEL = "DEL, then the namespace goes"
    DEL_TWICE = "DEL, and again"
    NAMESPACE_FIRST = "the namespace goes, then DEL"
    NO_DEL = "the namespace goes, and nobody says so"


_FAREWELLS = (*[Farewell.DEL] * 5, *[Farewell.DEL_TWICE] * 2, *[Farewell.NAMESPACE_FIRST] * 2, Farewell.NO_DEL)


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one pod. `company` is how many younger pods its worker starts before it ends."""

    namespace: str
    add_again: bool
    check: bool
    farewell: Farewell
    company: int

    @classmethod
    def draw(cls, rng: Random, namespaces: list[str]) -> "Fate":
        """The next one from `rng`."""
        return cls(
            namespace=rng.choice(namespaces),
            add_again=rng.random() < 0.15,
            check=rng.random() < 0.15,
            farewell=rng.choice(_FAREWELLS),
            company=rng.randrange(6),
        )


@dataclass(frozen=True, slots=True)
class LivePod:
    """A pod whose ADD has succeeded; `result` is what the runtime has cached."""

    sandbox: Sandbox
    fate: Fate
    result: dict[str, Any]

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(str(ip_address(address)) for address in addresses_of(self.result))

    @property
    def host_link(self) -> str:
        name: str = next(entry["name"] for entry in self.result["interfaces"] if "sandbox" not in entry)
        return name


class OperationError(AssertionError):
    """coild answered something that no crash excuses."""


class Kubelet:
    """One worker: one operation at a time. `number` and `seed` decide everything that it does."""

    def __init__(
        self, node: BareNode, runtime: Runtime, *, seed: str, number: int, namespaces: list[str], tally: Tally
    ) -> None:
        self._node = node
        self._runtime = runtime
        self._rng = Random(f"{seed}/kubelet/{number}")
        self._name = f"pod-{number}"
        self._namespaces = namespaces
        self._tally = tally
        self._started = 0
        self.pods: list[LivePod] = []

    def run(self, pods: int) -> None:
        """Start that many pods, and end those whose time has come."""
        for _ in range(pods):
            self.pods.append(self._start())
            waiting = list(enumerate(reversed(self.pods)))
            for age, pod in waiting:
                if age >= pod.fate.company:
                    self._end(pod)

    def end_all(self) -> None:
        """End every pod."""
        for pod in list(self.pods):
            self._end(pod)

    def _start(self) -> LivePod:
        fate = Fate.draw(self._rng, self._namespaces)
        self._started += 1
        pod = PodName(fate.namespace, f"{self._name}-{self._started}")
        # The IDs come from the pod's own generator: how often it is tried must not change the fate of the next.
        ids = Random(f"{self._rng.random()}")
        deadline = time.monotonic() + PATIENCE
        while True:
            sandbox = self._node.make_sandbox(pod, container_id=ids.randbytes(32).hex())
            try:
                result = self._runtime.add(sandbox)
            except CniError as failure:
                self._note_failure(failure)
                self._delete(sandbox)
                sandbox.destroy()
                if time.monotonic() > deadline:
                    raise OperationError(f"{pod} did not come up within {PATIENCE:.0f} s: {failure}") from failure
                time.sleep(PAUSE)
                continue
            live = LivePod(sandbox, fate, result)
            self._tally.enter(sandbox.container_id, live.addresses)
            self._tally.succeeded(Operation.ADD)
            self._inspect(live)
            return live

    def _inspect(self, pod: LivePod) -> None:
        if (actual := pod.sandbox.kernel.global_addresses()) != pod.addresses:
            raise OperationError(f"{pod.sandbox.pod} was given {pod.addresses} and has {actual}")
        if pod.fate.add_again:
            try:
                again = self._runtime.add(pod.sandbox)
            except CniError as failure:
                self._note_failure(failure)
            else:
                self._tally.succeeded(Operation.ADD)
                if again != pod.result:
                    raise OperationError(f"a repeated ADD answered {again} after {pod.result}")
        if pod.fate.check:
            try:
                self._runtime.check(pod.sandbox, cached=pod.result)
            except CniError as failure:
                self._note_failure(failure)

    def _end(self, pod: LivePod) -> None:
        sandbox, farewell = pod.sandbox, pod.fate.farewell
        if (actual := sandbox.kernel.global_addresses()) != pod.addresses:
            raise OperationError(f"{sandbox.pod} was given {pod.addresses} and was left with {actual}")
        # From here on the addresses may be another pod's.
        self._tally.leave(sandbox.container_id)
        self.pods.remove(pod)
        if farewell in (Farewell.NAMESPACE_FIRST, Farewell.NO_DEL):
            sandbox.destroy()
        if farewell is not Farewell.NO_DEL:
            self._delete(sandbox, cached=pod.result)
        if farewell is Farewell.DEL_TWICE:
            self._delete(sandbox, cached=pod.result)
        sandbox.destroy()

    def _delete(self, sandbox: Sandbox, *, cached: dict[str, Any] | None = None) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._runtime.delete(sandbox, cached=cached)
            except CniError as failure:
                self._note_failure(failure)
                if time.monotonic() > deadline:
                    raise OperationError(f"{sandbox.pod} did not go within {PATIENCE:.0f} s: {failure}") from failure
                time.sleep(PAUSE)
            else:
                self._tally.succeeded(Operation.DEL)
                return

    def _note_failure(self, failure: CniError) -> None:
        if failure.code != TRY_AGAIN_LATER:
            raise OperationError(f"a crash must look like one that passes: {failure}") from failure
        self._tally.failed()


def live_pods(kubelets: Iterable[Kubelet]) -> dict[str, LivePod]:
    """The pods that are up, by container ID. Only while no worker works."""
    return {pod.sandbox.container_id: pod for kubelet in kubelets for pod in kubelet.pods}
