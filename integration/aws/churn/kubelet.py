"""Plays kubelet and container runtime on a node: brings pods up and takes them down, again and again until it succeeds;
and whoever kills coild there, now and then.

What failed to be added is deleted, and the next attempt has a new sandbox. A DEL is repeated until it succeeds, but for
some that are missed: then the pod's namespace is gone, and coild has to notice.
"""

import time
from ipaddress import IPv4Address
from random import Random
from typing import Any, Final

from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, addresses_of
from integration.apiserver.sandbox import Sandbox
from integration.aws.churn.account import AccountWatch
from integration.aws.churn.register import PodRegister, WiredPod
from integration.aws.node import EniNode, EniPod
from integration.aws.talk import ask
from integration.aws.vpc import Host
from integration.aws.world import EniWorld
from integration.side_thread import SideThread
from tests.coild.eni.simulation.churn import Weather
from tests.coild.eni.simulation.trace import PodRun

PAUSE: Final = 1.0
"""Seconds until an operation is tried again."""
PATIENCE: Final = 600.0
"""Seconds in which a pod comes up, or goes, whatever is broken meanwhile, on a machine that does much else."""
INTERNET: Final = "203.0.113.10"
_HASTY: Final = 0.3
"""The share of coild's lives that end while it starts."""
_START_SECONDS: Final = 2.0
_LOOK: Final = 0.2
_MISSED, _NAMESPACE_FIRST = 20, 7
"""Of how many pods one ends without a DEL, and one with the DEL of a namespace that is gone."""


class AbortedError(Exception):
    """Somebody else has failed; there is nothing more to wait for."""


class Kubelet:
    """One for each node; `run_pod` is called from threads."""

    def __init__(self, world: EniWorld, node: EniNode, register: PodRegister, account: AccountWatch) -> None:
        self.waits: list[float] = []
        """What each pod waited from its start until it was up, in seconds."""
        self.later: list[str] = []
        """What was to be tried again, in its words."""
        self._world = world
        self._node = node
        self._register = register
        self._account = account

    def run_pod(self, run: PodRun) -> None:
        """From now to the pod's end. Raises AbortedError."""
        begun = time.monotonic()
        sandbox, result = self._bring_up(run, deadline=begun + PATIENCE)
        self.waits.append(time.monotonic() - begun)
        pod = _wired(run, self._node, result)
        self._account.enter(pod)
        self._talk(run, pod, EniPod(self._node, sandbox, result))
        self._sleep(run.seconds)
        self._register.leave(pod)
        if run.number % _MISSED == 0:
            sandbox.destroy()
            return
        if run.number % _NAMESPACE_FIRST == 0:
            sandbox.destroy()
        self._delete(sandbox, result, deadline=time.monotonic() + PATIENCE)
        sandbox.destroy()

    def _bring_up(self, run: PodRun, *, deadline: float) -> tuple[Sandbox, dict[str, Any]]:
        while True:
            sandbox = self._node.sandbox()
            try:
                return sandbox, self._node.runtime.add(sandbox)
            except CniError as failure:
                self._heed(failure, f"pod {run.number}", deadline=deadline)
            self._delete(sandbox, None, deadline=deadline)
            sandbox.destroy()

    def _delete(self, sandbox: Sandbox, result: dict[str, Any] | None, *, deadline: float) -> None:
        while True:
            try:
                return self._node.runtime.delete(sandbox, cached=result)
            except CniError as failure:
                self._heed(failure, f"the end of {sandbox.pod.name}", deadline=deadline)

    def _heed(self, failure: CniError, what: str, *, deadline: float) -> None:
        """What is to be tried again is, after a pause."""
        if failure.code != TRY_AGAIN_LATER:
            self._register.accuse(f"{what} on {self._node.name} failed for good: {failure}")
        elif time.monotonic() > deadline:
            self._register.accuse(f"{what} on {self._node.name} does not come about: {failure}")
        self.later.append(failure.message)
        self._sleep(PAUSE)
        # Nobody is helped by a node's pods that ask all at once, and again, while nobody answers.
        while not self._node.is_served() and time.monotonic() < deadline:
            self._sleep(PAUSE)

    def _talk(self, run: PodRun, pod: WiredPod, there: EniPod) -> None:
        """It reaches the VPC as itself, or the internet as its node, whether or not coild is alive."""
        inside = bool(run.number % 2)
        wanted: IPv4Address = pod.address if inside else self._node.instance.primary
        endpoint = self._world.endpoint
        server, address = (endpoint.host, str(endpoint.primary)) if inside else (self._world.vpc.internet, INTERNET)
        self._node.instance.wait_up(there.interface)
        if (seen := _source(there.host, server, address)) != str(wanted):
            self._register.accuse(f"{pod} sends to {address} as {seen}, and should as {wanted}")

    def _sleep(self, seconds: float) -> None:
        if self._register.failed.wait(seconds):
            raise AbortedError


class Killer(SideThread):
    """kill -9 of a node's coild, and its next start after a random while, until the exit.

    A life is random from when it takes calls; some end while it starts, but never two in a row: on a machine with much
    else to do, nobody would ever take calls.
    """

    def __init__(self, node: EniNode, weather: Weather, random: Random, register: PodRegister) -> None:
        super().__init__(f"killer of {node.name}", failed=register.failed.set)
        self.kills = 0
        self._node = node
        self._weather = weather
        self._random = random

    def work(self) -> None:
        hasty = False
        while not self._live(hasty=hasty):
            self._node.coild.kill()
            self.kills += 1
            self.stopped.wait(self._random.uniform(*self._weather.downtimes))
            self._node.coild.start()
            hasty = not hasty and self._random.random() < _HASTY

    def _live(self, *, hasty: bool) -> bool:
        """Until it is to be killed; whether that is not to be any more."""
        if hasty:
            return self.stopped.wait(self._random.uniform(0.0, _START_SECONDS))
        while not self._node.is_served():
            if self._node.coild.process.poll() is not None:
                return False  # by itself, which is for the kill to tell
            if self.stopped.wait(_LOOK):
                return True
        return self.stopped.wait(self._random.uniform(*self._weather.lives))


def _wired(run: PodRun, node: EniNode, result: dict[str, Any]) -> WiredPod:
    [address] = addresses_of(result)
    [link] = [entry["name"] for entry in result["interfaces"] if "sandbox" not in entry]
    return WiredPod(f"pod {run.number}", node.name, node.instance.id, IPv4Address(address), link)


def _source(client: Host, server: Host, address: str) -> str:
    """As whom the server sees the client; "nobody" if nothing arrives."""
    try:
        return ask(client, server, address)
    except TimeoutError:
        return "nobody"
