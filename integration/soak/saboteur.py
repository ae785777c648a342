"""Lets the faults strike when they are due, one after the other; those that last end by themselves meanwhile."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from integration.cluster.process import Process
from integration.patience import wait_until
from integration.service import Service
from integration.soak import partition
from integration.soak.fault import KEEPS_BLOCKS_COMING, Fault, Kind
from integration.soak.overload import Overload
from integration.soak.replica import Replica
from integration.soak.station import AbortedError, Station
from integration.soak.tally import Tally
from integration.soak.world import World

LULL = 20.0
"""Seconds to wait for a leader; when there is none, a controller that does not lead is struck."""

RECOVERY = 1.5
"""Seconds from a start into the work."""

COLLECTED_TIMEOUT = 180.0
"""Seconds until the controller has taken back what a deleted node had, and coild has heard of it."""

STOP_TIMEOUT = 60.0
NODES_PATH = "/api/v1/nodes"
AFTERMATH = 8.0
"""Seconds after a fault in which it may still show: an election, a node that waits for a block."""


class Saboteur:
    """One for a run; `run` is for one thread."""

    def __init__(self, world: World, *, tally: Tally, workers_per_node: int) -> None:
        self._world = world
        self._tally = tally
        self._workers = workers_per_node
        self._history = world.history
        self._rng = Random(f"{world.history.seed}/saboteur")
        self._overload = Overload(world.plane, world.workspace.folder / "service-accounts" / "kube-system.coild.token")
        self._lasting: list[threading.Thread] = []
        self._failure: Exception | None = None
        self._partitions = [threading.Lock() for _ in world.stations]
        self._troubles: list[tuple[float, float]] = []
        self.done: Counter[Kind] = Counter()
        self._acts: dict[Kind, Callable[[Fault], None]] = {
            Kind.COILD_KILL: lambda fault: self._restart_coild(fault, kill=True),
            Kind.COILD_KILL_TWICE: self._kill_coild_twice,
            Kind.COILD_STOP: lambda fault: self._restart_coild(fault, kill=False),
            Kind.COILD_PAUSE: lambda fault: self._last(lambda: self._pause_coild(fault)),
            Kind.LEADER_KILL: lambda _: self._leader().service.crash(),
            Kind.LEADER_STOP: lambda _: self._stop(self._leader().service),
            Kind.LEADER_PAUSE: lambda fault: self._pause_leader(fault.seconds),
            Kind.STANDBY_KILL: lambda _: self._standby().service.crash(),
            Kind.API_RESTART: lambda _: world.plane.restart_apiserver(),
            Kind.API_KILL: lambda _: self._kill_apiserver(),
            Kind.COMPACTION: lambda _: self._compact(),
            Kind.COMPACTION_RESTART: self._compact_and_restart,
            Kind.OVERLOAD: lambda fault: self._last(lambda: self._overload.last(fault.seconds)),
            Kind.PARTITION: lambda fault: self._last(lambda: self._cut_off(fault)),
            Kind.DEAF: lambda fault: self._last(lambda: self._cut_off(fault)),
            Kind.PARTITION_RESTART: self._cut_off_and_restart,
            Kind.NODE_REPLACED: lambda fault: self._replace_node(fault, coild_too=True),
            Kind.NODE_DELETED: lambda fault: self._replace_node(fault, coild_too=False),
            Kind.NODE_FLAPPED: self._flap_node,
            Kind.POOL_SWITCHED: lambda _: self._say(world.pool_setup.switch(self._rng)),
            Kind.POOL_APPENDED: lambda _: self._say(world.pool_setup.append(self._rng)),
        }

    def run(self, faults: Sequence[Fault]) -> None:
        """Strike with each when it is due, and return when all are over. Raises AbortedError when others fail."""
        for fault in faults:
            while not self._tally.await_done(fault.after, timeout=0.2):
                self._look_out()
            time.sleep(fault.delay)
            self._history.note("fault", str(fault))
            began = self._history.now()
            self._acts[fault.kind](fault)
            if fault.kind not in KEEPS_BLOCKS_COMING:
                self._troubles.append((began, self._history.now() + fault.seconds + AFTERMATH))
            self._history.note("fault", f"struck: {fault.kind.value}")
            self.done[fault.kind] += 1
        for thread in self._lasting:
            thread.join()
        self._lasting.clear()
        self._look_out()

    def troubled(self, since: float, until: float) -> bool:
        """Whether a node may have been without new blocks at some moment between these of the history."""
        return any(began < until and since < over for began, over in self._troubles)

    def _look_out(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._world.aborted.is_set():
            raise AbortedError

    def _last(self, work: Callable[[], None]) -> None:
        """In the background, until it is over; `run` waits for it at its end."""

        def watched() -> None:
            try:
                work()
            except Exception as error:
                self._failure = error

        thread = threading.Thread(target=watched, name="fault", daemon=True)
        thread.start()
        self._lasting.append(thread)

    def _say(self, what: str) -> None:
        self._history.note("fault", what)

    def _station(self, fault: Fault) -> Station:
        return self._world.stations[fault.node]

    # --- coild

    def _restart_coild(self, fault: Fault, *, kill: bool) -> None:
        station = self._station(fault)
        station.end_coild(kill=kill)
        station.start_coild()

    def _kill_coild_twice(self, fault: Fault) -> None:
        self._restart_coild(fault, kill=True)
        time.sleep(self._rng.uniform(0, RECOVERY))
        self._restart_coild(fault, kill=True)

    def _pause_coild(self, fault: Fault) -> None:
        _pause(self._station(fault).coild.process, fault.seconds)

    # --- the controllers

    def _leader(self) -> Replica:
        replicas = self._world.replicas
        deadline = time.monotonic() + LULL
        while time.monotonic() < deadline:
            if (leader := next((replica for replica in replicas if replica.leads()), None)) is not None:
                self._say(f"{leader.name} leads")
                return leader
            time.sleep(0.05)
        self._say("nobody leads")
        return replicas[0]

    def _standby(self) -> Replica:
        leader = self._leader()
        return next(replica for replica in self._world.replicas if replica is not leader)

    def _stop(self, service: Service) -> None:
        service.process.terminate()
        service.process.wait(STOP_TIMEOUT)
        service.start()

    def _pause_leader(self, seconds: float) -> None:
        service = self._leader().service
        _pause(service.process, seconds)
        # Its lease is another's by now. It may end itself rather than risk to work on.
        time.sleep(1.0)
        if service.process.poll() is not None:
            self._say("the leader ended itself")
            service.start()

    # --- the API server

    def _kill_apiserver(self) -> None:
        self._world.plane.kill_apiserver()
        self._world.plane.start_apiserver()

    def _compact(self) -> None:
        self._say(f"compacted to {self._world.plane.compact_etcd()}")

    def _compact_and_restart(self, fault: Fault) -> None:
        # The node hears nothing of what happens before the restart, and can be told nothing of it afterwards.
        self._world.plane.stop_apiserver()
        self._compact()
        self._world.plane.start_apiserver()

    # --- the network

    def _cut_off(self, fault: Fault) -> None:
        port = self._station(fault).name
        with self._partitions[fault.node]:
            (partition.deafen if fault.kind is Kind.DEAF else partition.cut)(self._world.network, port)
            time.sleep(fault.seconds)
            partition.heal(self._world.network, port)
        self._say(f"{port} is back on the network")

    def _cut_off_and_restart(self, fault: Fault) -> None:
        self._last(lambda: self._cut_off(fault))
        self._world.plane.restart_apiserver()

    # --- a node's end

    def _replace_node(self, fault: Fault, *, coild_too: bool) -> None:
        """As an administrator does it: no pod is on the node any more when its object is deleted."""
        station = self._station(fault)
        station.gate.close(self._workers)
        self._say(f"{station.name} is drained")
        if coild_too:
            station.await_coild()
            station.end_coild(kill=True)
        self._world.plane.kubectl("delete", "node", station.name)
        wait_until(lambda: not self._left_of(station), what=f"what {station.name} had goes", timeout=COLLECTED_TIMEOUT)
        if not coild_too:
            # Else it might give an address of a block that is another node's by now.
            wait_until(
                lambda: not self._world.witness.kernel(station.name).exports,
                what=f"coild hears that {station.name} has no block",
                timeout=COLLECTED_TIMEOUT,
            )
        station.node.register()
        if coild_too:
            station.start_coild()
        station.gate.open()
        self._say(f"{station.name} is open")

    def _flap_node(self, fault: Fault) -> None:
        """By mistake: its pods run on, and it is back before anybody may take its blocks."""
        station = self._station(fault)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": station.name}}
        self._world.plane.request("DELETE", f"{NODES_PATH}/{station.name}")
        status, answer = self._world.plane.request("POST", NODES_PATH, json.dumps(node).encode())
        assert status == 201, answer
        station.node.register()

    def _left_of(self, station: Station) -> list[str]:
        objects = self._world.witness.objects()
        blocks = [block.name for block in objects.blocks if block.node == station.name]
        return blocks + [name for name in objects.requests if name.startswith(f"req-{station.name}-")]


def _pause(process: Process, seconds: float) -> None:
    """SIGSTOP, and SIGCONT; it may be killed meanwhile."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
