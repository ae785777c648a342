"""Calls the plugin as a runtime does, and judges each answer at once: what no fault excuses is a violation.

An operation may only fail with "try again later". One that needs nobody but coild (a DEL, a CHECK, an ADD of what is
up already) may do so only if coild was away while it ran.
"""

import time
from dataclasses import dataclass
from random import Random
from typing import Any

from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError
from integration.apiserver.sandbox import Sandbox
from integration.soak.history import Violation
from integration.soak.observation import Pod
from integration.soak.station import Station
from integration.soak.tally import Operation, Outcome, Tally

PATIENCE = 120.0
"""Seconds in which a DEL must succeed, whatever is broken meanwhile."""

PAUSE = 0.1
"""Seconds between two tries, and after one that was told to come later."""

LONGEST_BREAK = 0.06
"""Seconds after which a plugin is killed, at most; it takes some 30 ms by itself."""

UNKNOWN_CONTAINER = 3


@dataclass(frozen=True, slots=True)
class Up:
    """A pod that is up; `result` is what the runtime has cached of it."""

    pod: Pod
    sandbox: Sandbox
    result: dict[str, Any]


class Caller:
    """One of a worker. Every method counts what came of it, and raises Violation."""

    def __init__(self, station: Station, *, name: str, tally: Tally) -> None:
        self._station = station
        self._name = name
        self._tally = tally

    def add(self, sandbox: Sandbox) -> dict[str, Any] | None:
        """The result; None if it is to be tried again later, after a DEL."""
        try:
            result = self._station.runtime.add(sandbox)
        except CniError as failure:
            self._later(Operation.ADD, sandbox, failure)
            return None
        self._tally.count(Operation.ADD, Outcome.DONE)
        return result

    def add_again(self, up: Up) -> None:
        """The same answer again."""
        mark = self._station.outage.mark()
        try:
            result = self._station.runtime.add(up.sandbox)
        except CniError as failure:
            self._excuse(Operation.ADD_AGAIN, up.sandbox, failure, mark=mark)
            return
        self._tally.count(Operation.ADD_AGAIN, Outcome.DONE)
        if result != up.result:
            raise self._violation(f"a repeated ADD answered {result} after {up.result}", up.sandbox)

    def race(self, sandbox: Sandbox) -> dict[str, Any] | None:
        """Two ADDs at once; the pod is up if one of them succeeds, and they never contradict each other."""
        results: list[dict[str, Any]] = []
        for execution in [self._station.runtime.begin("ADD", sandbox) for _ in range(2)]:
            try:
                results.append(execution.result())
            except CniError as failure:
                self._later(Operation.ADD_RACE, sandbox, failure)
            else:
                self._tally.count(Operation.ADD_RACE, Outcome.DONE)
        if len(results) == 2 and results[0] != results[1]:
            raise self._violation(f"two ADDs at once answered {results}", sandbox)
        return results[0] if results else None

    def add_nowhere(self, sandbox: Sandbox) -> None:
        """An ADD in a namespace that has just been destroyed."""
        netns = sandbox.netns
        sandbox.destroy()
        try:
            result = self._station.runtime.begin("ADD", sandbox, netns=netns).finish()
        except CniError as failure:
            if failure.code == UNKNOWN_CONTAINER:
                self._tally.count(Operation.ADD_NOWHERE, Outcome.DONE)
            else:
                self._later(Operation.ADD_NOWHERE, sandbox, failure)
        else:
            raise self._violation(f"an ADD in a vanished namespace answered {result!r}", sandbox)

    def check(self, up: Up) -> None:
        """Nothing is missing."""
        mark = self._station.outage.mark()
        try:
            self._station.runtime.check(up.sandbox, cached=up.result)
        except CniError as failure:
            self._excuse(Operation.CHECK, up.sandbox, failure, mark=mark)
        else:
            self._tally.count(Operation.CHECK, Outcome.DONE)

    def check_gone(self, sandbox: Sandbox, cached: dict[str, Any]) -> None:
        """A pod that was deleted is not known any more."""
        mark = self._station.outage.mark()
        try:
            self._station.runtime.check(sandbox, cached=cached)
        except CniError as failure:
            if failure.code == UNKNOWN_CONTAINER:
                self._tally.count(Operation.CHECK_GONE, Outcome.DONE)
            else:
                self._excuse(Operation.CHECK_GONE, sandbox, failure, mark=mark)
        else:
            raise self._violation("CHECK finds a pod that was deleted", sandbox)

    def delete(self, sandbox: Sandbox, operation: Operation, *, cached: dict[str, Any] | None = None) -> None:
        """DEL until it succeeds."""
        deadline = time.monotonic() + PATIENCE
        while True:
            mark = self._station.outage.mark()
            try:
                self._station.runtime.delete(sandbox, cached=cached)
            except CniError as failure:
                self._excuse(operation, sandbox, failure, mark=mark)
                if time.monotonic() > deadline:
                    raise self._violation(f"{short_name(sandbox)} cannot be deleted: {failure}", sandbox) from failure
                time.sleep(PAUSE)
            else:
                self._tally.count(operation, Outcome.DONE)
                return

    def break_off(self, command: str, sandbox: Sandbox, rng: Random, *, cached: dict[str, Any] | None = None) -> None:
        """Kill the plugin before it has ended; nobody knows what has come of it."""
        execution = self._station.runtime.begin(command, sandbox, cached=cached)
        if execution.abandon(rng.uniform(0, LONGEST_BREAK)):
            self._tally.count(Operation.KILLED, Outcome.DONE)
        self._note(f"{command} of {short_name(sandbox)} broken off", sandbox)

    def inspect(self, up: Up) -> None:
        """The pod has the addresses that it was given, and no others."""
        actual = up.sandbox.kernel.global_addresses()
        if actual != up.pod.addresses:
            what = f"{short_name(up.sandbox)} was given {sorted(up.pod.addresses)} and has {sorted(actual)}"
            raise self._station.history.violation(what, {up.pod.container_id, *up.pod.addresses, *actual})

    # --- judgement

    def _excuse(self, operation: Operation, sandbox: Sandbox, failure: CniError, *, mark: int | None) -> None:
        """A failure of what needs nobody but coild."""
        if not self._station.outage.excuses(mark):
            raise self._violation(f"{operation.value} failed while coild was there: {failure}", sandbox) from failure
        self._later(operation, sandbox, failure)

    def _later(self, operation: Operation, sandbox: Sandbox, failure: CniError) -> None:
        if failure.code != TRY_AGAIN_LATER:
            raise self._violation(f"{operation.value} failed for good: {failure}", sandbox) from failure
        self._tally.count(operation, Outcome.LATER)
        self._note(f"{operation.value} of {short_name(sandbox)} later: {failure.message[:160]}", sandbox)
        time.sleep(PAUSE)

    def _violation(self, what: str, sandbox: Sandbox) -> Violation:
        return self._station.history.violation(f"{self._name}: {what}", {sandbox.container_id})

    def _note(self, what: str, sandbox: Sandbox) -> None:
        self._station.history.note(self._name, what, {sandbox.container_id})


def short_name(sandbox: Sandbox) -> str:
    """For the history."""
    return f"{sandbox.container_id[:12]} ({sandbox.pod.namespace})"
