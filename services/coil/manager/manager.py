"""The manager of a process: its caches, and the terms in which its controllers work on them.

    async def assemble(settings: Settings, process: Process) -> None:
        kube = await process.stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
        manager = Manager(process)
        requests = manager.cache(kube.collection(BLOCK_REQUESTS))
        manager.each_term(lambda term: BlockRequestReconciler(kube, requests).setup(term))
        await manager.start(Election(process, settings, client=kube, metrics=manager.metrics))

A service says each thing once: a cache is declared with its readiness check and its metrics, a reconciler says beside
`reconcile` what it watches (see `term`), and the process takes all of it apart in the reverse order.

Every replica follows its caches, is ready and runs its own runnables, so that a new leader has full caches at once;
only the elected one has a term. A process without an election has one term, from its start to its end.

What cannot wait for an election, a replica does while it stands by (`while_standing_by`): work that is safe whoever
does it, because each of its writes is guarded by what it was decided on.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from coil.crd.resource import HasMetadata
from coil.kube.api_client import ApiClient
from coil.manager.election import Election
from coil.manager.term import Run, Term
from coil.reconcile.cache import Cache, describe_unsynced, wait_synced
from coil.reconcile.event_recorder import EventMetrics, EventRecorder
from coil.reconcile.informer import Informer, InformerMetrics, ListerWatcher
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.store import Indexer
from coil.runtime.process import Process

T = TypeVar("T", bound=HasMetadata)


class Manager:
    """One per process. `clock` gives monotonic seconds and `random` [0, 1); they are arguments for tests to replace.

    `metrics` are those of all queues, controllers and elections of the process.
    """

    def __init__(
        self,
        process: Process,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.metrics = ReconcileMetrics(process.registry)
        self._process = process
        self._clock = clock
        self._random = random
        self._log = process.log
        self._informer_metrics = InformerMetrics(process.registry)
        self._required: list[Cache[Any]] = []
        self._runnables: list[tuple[str, Run]] = []
        self._setups: list[Callable[[Term], None]] = []
        self._standby_setups: list[Callable[[Term], None]] = []
        self._turn = asyncio.Lock()
        """Of whoever leads or stands by: never both."""
        self._elected = asyncio.Event()

    def cache(
        self,
        source: ListerWatcher[T],
        *,
        name: str = "",
        indexers: Mapping[str, Indexer[T]] | None = None,
        optional: bool = False,
    ) -> Informer[T]:
        """A cache of `source`, such as a `KubeClient.collection`, which is followed from now on in every replica.

        Its readiness check, and its series in the metrics, are called `name`, by default the plural of the kind. An
        optional kind may not be served: `start` does not wait for it, and the process is ready without it. Raises
        ValueError for a name that is taken.
        """
        metrics = self._informer_metrics.named(name)
        label = name or source.resource.plural
        informer = Informer(
            source,
            log=self._log,
            metrics=metrics,
            indexers=indexers,
            optional=optional,
            clock=self._clock,
            random=self._random,
        )
        self._process.add_readiness(label, partial(describe_unsynced, informer, optional=optional))
        self._process.spawn(label, informer.run())
        if not optional:
            self._required.append(informer)
        return informer

    def event_recorder(self, client: ApiClient, *, host: str = "") -> EventRecorder:
        """A recorder of Events by this program, which writes from now on. `host` is the node's name, if that matters.

        At most one for each process.
        """
        metrics = EventMetrics(self._process.registry)
        recorder = EventRecorder(client, component=self._process.name, log=self._log, metrics=metrics, host=host)
        self._process.spawn("events", recorder.run())
        return recorder

    def add_runnable(self, name: str, run: Run) -> None:
        """Run `run()` in every replica, from `start` to the end of the process, which stops should it end earlier.

        For one that only a leader runs there is `Term.add_runnable`.
        """
        self._runnables.append((name, run))

    def each_term(self, setup: Callable[[Term], None]) -> None:
        """Call `setup(term)` at the beginning of each term: it makes the state and the reconcilers of that term.

        Setups are called in the order in which they were added, and must not keep state from one term to the next.
        """
        self._setups.append(setup)

    def while_standing_by(self, setup: Callable[[Term], None]) -> None:
        """Call `setup(term)` whenever this replica begins to stand by: while it does not lead, whether or not another
        does. All of it has ended before a term of its own begins. As for `each_term`, no state is kept.
        """
        self._standby_setups.append(setup)

    async def start(self, election: Election | None = None) -> None:
        """Wait for the caches that are not optional, then contend, or without an election begin the only term.

        Cancelled, nothing of that has begun.
        """
        await wait_synced(self._required, log=self._log)
        for name, run in self._runnables:
            self._process.spawn(name, run())
        if election is not None:
            if self._standby_setups:
                self._process.spawn("standby", self.stand_by())
            self._process.spawn("election", election.run(self.lead))
        elif self._setups:
            self._process.spawn("controllers", self.lead())

    async def lead(self) -> None:
        """One term: work until cancelled. May be called again after that; nothing of the term before is left.

        What a controller, an index or a runnable raises ends the term and is raised.
        """
        self._elected.set()
        try:
            async with self._turn:
                await self._work(self._setups)
        finally:
            self._elected.clear()

    async def stand_by(self) -> None:
        """Stand by whenever `lead` does not run, until cancelled. What a part of it raises ends it and is raised."""
        while True:
            async with self._turn:
                work = asyncio.create_task(self._work(self._standby_setups))
                elected = asyncio.create_task(self._elected.wait())
                try:
                    await asyncio.wait({work, elected}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    work.cancel()
                    elected.cancel()
                    await asyncio.wait({work, elected})
                if not work.cancelled():
                    work.result()

    async def _work(self, setups: Iterable[Callable[[Term], None]]) -> None:
        with ExitStack() as stack:
            term = Term(stack, metrics=self.metrics, log=self._log, clock=self._clock, random=self._random)
            for setup in setups:
                setup(term)
            await term.run()
