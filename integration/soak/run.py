"""One soak: rounds of operations under faults, each followed by a rest in which everything has to agree.

work, while faults strike ─► all faults over ─► objects = kernels = ledgers = pods ─► every pool serves ─► work …
at the end all pods go ─► nothing is left
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from random import Random

from integration.patience import wait_until_clean
from integration.soak.allocations import Allocations, Return
from integration.soak.fault import Fault, draw_faults, split_rounds
from integration.soak.footprint import Footprint
from integration.soak.pool_setup import AMPLE
from integration.soak.saboteur import Saboteur
from integration.soak.sampler import Sampler
from integration.soak.station import AbortedError
from integration.soak.tally import Tally
from integration.soak.verdict import find_lasting_faults
from integration.soak.witness import UnreachableError
from integration.soak.worker import Worker
from integration.soak.world import COOLING_SECONDS, World

USUAL_OPERATIONS = 3000
ROUNDS = 3
WORKERS_PER_NODE = 4
LATE = "no block within"
"""What coild says of a block that did not come in time."""

SERVED_WITHIN = 60.0
"""Seconds after the last fault in which a pod must come up in every pool that has addresses left."""


class Soak:
    """Make one for a world and `run` it."""

    def __init__(self, world: World, *, operations: int) -> None:
        self._world = world
        self._operations = operations
        self.allocations = Allocations(world.history)
        self.tally = Tally()
        self.faults = draw_faults(
            Random(f"{world.history.seed}/faults"),
            operations=operations,
            usual=USUAL_OPERATIONS,
            nodes=len(world.stations),
            survivor_from=operations // 2,
        )
        self.saboteur = Saboteur(world, tally=self.tally, workers_per_node=WORKERS_PER_NODE)
        self.looks = 0
        self._workers = [
            Worker(station, number=number, pool_setup=world.pool_setup, allocations=self.allocations, tally=self.tally)
            for station in world.stations
            for number in range(WORKERS_PER_NODE)
        ]

    def run(self) -> None:
        """All of it. Raises Violation, or AssertionError for what does not come to rest."""
        for number, faults in enumerate(split_rounds(self.faults, operations=self._operations, rounds=ROUNDS)):
            self._round(faults, until=self._operations * (number + 1) // ROUNDS)
            self._world.await_ready()
            self._rest(f"round {number} is over, {self.tally.done} operations")
            self._serve()
        self._together([worker.end_all for worker in self._workers])
        self._rest("all pods have ended")

    def hasty_returns(self) -> list[Return]:
        """Addresses that were given again before they had rested, without a reason that holds.

        coild logs the reason of each. A late block is a reason on a machine as busy as this one. A refusal is none if
        the pool has more blocks than the pods can use and no fault kept blocks from coming.
        """
        reasons = self._world.early_grants()

        def holds(entry: Return) -> bool:
            reason = reasons.get((entry.container_id, entry.address))
            if reason is None or LATE in reason:
                return reason is not None
            return entry.pool != AMPLE or self.saboteur.troubled(entry.at - entry.rest, entry.at)

        return [entry for entry in self.allocations.returns(within=COOLING_SECONDS) if not holds(entry)]

    def footprints(self) -> dict[str, Footprint]:
        """What each coild takes now."""
        return {station.name: Footprint.of(station.coild.process.pid) for station in self._world.stations}

    def _round(self, faults: Sequence[Fault], *, until: int) -> None:
        over = threading.Event()

        def sabotage() -> None:
            self.saboteur.run(faults)
            over.set()

        def finished() -> bool:
            return over.is_set() and self.tally.done >= until

        aborted = self._world.aborted
        names = [station.name for station in self._world.stations]
        with Sampler(self._world.witness, names, history=self._world.history, failed=aborted.set) as sampler:
            self._together([sabotage, *(partial(worker.run, finished, aborted.is_set) for worker in self._workers)])
        self.looks += sampler.looks

    def _rest(self, after: str) -> None:
        wait_until_clean(self._find_faults, after=after)
        self._world.history.note("rest", after)

    def _find_faults(self) -> list[str]:
        try:
            return find_lasting_faults(self._world.witness.observe(), self.allocations.pods())
        except UnreachableError as error:
            return [str(error)]

    def _serve(self) -> None:
        """Every pool that is not meant to be dry gives an address on every node."""
        namespaces = self._world.pool_setup.served()
        first = self._workers[::WORKERS_PER_NODE]

        def serve(worker: Worker) -> None:
            for namespace in namespaces:
                worker.prove_service(namespace, within=SERVED_WITHIN)

        self._together([partial(serve, worker) for worker in first])

    def _together(self, works: Sequence[Callable[[], None]]) -> None:
        """Do all at once. The first failure ends the others, and is raised."""
        with ThreadPoolExecutor(max_workers=len(works)) as pool:
            futures: list[Future[None]] = [pool.submit(work) for work in works]
            wait(futures, return_when=FIRST_EXCEPTION)
            if any(future.done() and future.exception() is not None for future in futures):
                self._world.aborted.set()
        failures = [error for future in futures if (error := future.exception()) is not None]
        # Those who only heard of it say nothing new.
        failures.sort(key=lambda error: isinstance(error, AbortedError))
        if failures:
            raise failures[0]
