"""Plays kubelet and container runtime on a node: pods come and go, and operations fail, repeat, race and break off.

The contract that a worker keeps is theirs: what failed to be added is deleted, a DEL is repeated until it succeeds, and
a pod whose ADD has succeeded is up until its DEL. What it may expect in return, `integration.soak.caller` demands.
"""

import time
from collections.abc import Callable
from enum import Enum, unique
from ipaddress import ip_address
from random import Random
from typing import Any

from integration.apiserver.runtime import addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.soak.allocations import Allocations
from integration.soak.caller import PAUSE, Caller, Up, short_name
from integration.soak.observation import Pod
from integration.soak.pool_setup import PoolSetup, pool_of
from integration.soak.station import AbortedError, Station
from integration.soak.tally import Operation, Tally

MOST_PODS = 4
"""Of one worker at a time."""


@unique
class Start(Enum):
    """How a pod begins. The value is its weight."""

    PLAIN = 60
    AGAIN = 12
    RACE = 10
    BROKEN_OFF = 7
    BROKEN_OFF_AND_AGAIN = 6
    NOWHERE = 5


@unique
class End(Enum):
    """How a pod ends. The value is its weight."""

    DEL = 40
    DEL_TWICE = 20
    CHECK_AFTERWARDS = 10
    NAMESPACE_FIRST = 12
    BROKEN_OFF = 13
    NO_DEL = 6


@unique
class Aside(Enum):
    """What is done in between. The value is its weight."""

    NOTHING = 45
    CHECK = 25
    ADD_AGAIN = 20
    DEL_UNKNOWN = 10


class Worker:
    """One of a node's; one thread. What it wants to do in its n-th step follows from the seed alone."""

    def __init__(
        self, station: Station, *, number: int, pool_setup: PoolSetup, allocations: Allocations, tally: Tally
    ) -> None:
        self._station = station
        self._pool_setup = pool_setup
        self._allocations = allocations
        self._history = station.history
        self.name = f"{station.name}/{number}"
        self._call = Caller(station, name=self.name, tally=tally)
        self._steps = 0
        self._up: list[Up] = []

    def run(self, finished: Callable[[], bool], aborted: Callable[[], bool]) -> None:
        """Work until `finished`. Raises Violation, or AbortedError when somebody else has failed."""
        while not finished():
            if aborted():
                raise AbortedError
            if self._station.gate.closed:
                self.end_all()
                self._station.gate.wait()
            else:
                self.step()

    def step(self) -> None:
        """Begin a pod or end one, and something aside."""
        self._steps += 1
        rng = Random(f"{self._history.seed}/{self.name}/{self._steps}")
        if len(self._up) < MOST_PODS and (not self._up or rng.random() < 0.55):
            self._begin(rng)
        else:
            self._end(self._up[rng.randrange(len(self._up))], rng)
        self._aside(rng)

    def end_all(self) -> None:
        """End every pod."""
        for up in list(self._up):
            self._end(up, Random(f"{self._history.seed}/{self.name}/{up.pod.container_id}"))

    def prove_service(self, namespace: str, *, within: float) -> None:
        """A pod of that namespace comes up and goes. Raises Violation when it does not within so many seconds."""
        deadline = time.monotonic() + within
        while True:
            self._steps += 1
            sandbox = self._make_sandbox(namespace, Random(f"{self._history.seed}/{self.name}/{self._steps}"))
            result = self._call.add(sandbox)
            if result is None:
                self._call.delete(sandbox, Operation.DEL)
                sandbox.destroy()
                if time.monotonic() > deadline:
                    what = f"no pod of {namespace} comes up on {self._station.name} within {within:.0f} s"
                    raise self._history.violation(what, {sandbox.container_id})
                time.sleep(PAUSE)
                continue
            self._end(self._enter(sandbox, result), Random(0))
            return

    # --- a pod's life

    def _begin(self, rng: Random) -> None:
        sandbox = self._make_sandbox(self._pool_setup.draw_namespace(rng), rng)
        start = rng.choices(list(Start), weights=[option.value for option in Start])[0]
        match start:
            case Start.NOWHERE:
                self._call.add_nowhere(sandbox)
                result = None
            case Start.RACE:
                result = self._call.race(sandbox)
            case Start.BROKEN_OFF | Start.BROKEN_OFF_AND_AGAIN:
                self._call.break_off("ADD", sandbox, rng)
                result = self._call.add(sandbox) if start is Start.BROKEN_OFF_AND_AGAIN else None
            case _:
                result = self._call.add(sandbox)
        if result is None:
            self._call.delete(sandbox, Operation.DEL)
            sandbox.destroy()
            return
        up = self._enter(sandbox, result)
        if start is Start.AGAIN:
            self._call.add_again(up)

    def _enter(self, sandbox: Sandbox, result: dict[str, Any]) -> Up:
        addresses = frozenset(str(ip_address(address)) for address in addresses_of(result))
        pool = pool_of(addresses)
        if pool is None or pool not in self._pool_setup.allowed(sandbox.pod.namespace):
            what = f"a pod of {sandbox.pod.namespace} was given {sorted(addresses)}"
            raise self._history.violation(what, {sandbox.container_id, *addresses})
        pod = Pod(
            node=self._station.name,
            container_id=sandbox.container_id,
            pool=pool,
            host_link=next(entry["name"] for entry in result["interfaces"] if "sandbox" not in entry),
            addresses=addresses,
        )
        self._note(f"{short_name(sandbox)} has {' '.join(sorted(addresses))}", pod)
        self._allocations.enter(pod)
        up = Up(pod, sandbox, result)
        self._up.append(up)
        self._call.inspect(up)
        return up

    def _end(self, up: Up, rng: Random) -> None:
        sandbox, cached = up.sandbox, up.result
        self._call.inspect(up)
        end = rng.choices(list(End), weights=[option.value for option in End])[0]
        self._note(f"{short_name(sandbox)} ends: {end.name}", up.pod)
        # From here on the addresses may be another pod's.
        self._allocations.leave(up.pod)
        self._up.remove(up)
        if end in (End.NAMESPACE_FIRST, End.NO_DEL):
            sandbox.destroy()
        if end is End.BROKEN_OFF:
            self._call.break_off("DEL", sandbox, rng, cached=cached)
        if end is not End.NO_DEL:
            self._call.delete(sandbox, Operation.DEL, cached=cached)
        if end is End.DEL_TWICE:
            self._call.delete(sandbox, Operation.DEL_AGAIN, cached=cached)
        if end is End.CHECK_AFTERWARDS:
            self._call.check_gone(sandbox, cached)
        sandbox.destroy()

    def _aside(self, rng: Random) -> None:
        aside = rng.choices(list(Aside), weights=[option.value for option in Aside])[0]
        up = self._up[rng.randrange(len(self._up))] if self._up else None
        if aside is Aside.DEL_UNKNOWN:
            stranger = self._make_sandbox("plain", rng)
            self._call.delete(stranger, Operation.DEL_UNKNOWN)
            stranger.destroy()
        elif aside is Aside.ADD_AGAIN and up is not None:
            self._call.add_again(up)
        elif aside is Aside.CHECK and up is not None:
            self._call.check(up)

    def _make_sandbox(self, namespace: str, rng: Random) -> Sandbox:
        pod = PodName(namespace, f"pod-{self.name.replace('/', '-')}-{self._steps}")
        return self._station.node.make_sandbox(pod, container_id=rng.randbytes(32).hex())

    def _note(self, what: str, pod: Pod) -> None:
        self._history.note(self.name, what, {pod.container_id, *pod.addresses})
