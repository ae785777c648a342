"""Takes a node over from egressgateway (the Go program), whose agent leaves all that it made when it stops.

    its agent runs on the node ─► wait: two agents would take the node's state away from each other
      ─► the node's tables are loaded, with the mesh held back ─► its state is removed ─► the mesh is made

Until the agent's own tables are there, what egressgateway left still leads pods' packets to their gateways, or there is
nobody who answers them: nothing has changed. Once they are there, they drop what policies are about and has no way, as
all gateways are out of reach without a mesh, and they drop what bears a mark and does not enter the tunnel. Only then
is the old state removed. The other way round, packets that no rule captures any more would leave with the node's
address. So it does not matter when the agent is killed: tables stay, and what is left is found at the next start.

The mesh has to wait since the link of both has the same name: made anew, it would have no routes for the rules of
egressgateway, and since its rules would give the mesh's packets marks of its own.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.kube.errors import ApiError
from coil.reconcile.backoff import Backoff
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, FormerState, sentence

LOOK_SECONDS: Final = 10.0
REMOVAL_BACKOFF: Final = Backoff(base=1.0, cap=60.0)

EXAMPLES: Final = 8
"""How much of what was found is logged."""
HELD: Final = "waiting until what egressgateway left on this node is removed"

ListAgents = Callable[[], Awaitable[Collection[str]]]
"""Namespaces and names of the pods of egressgateway's agent on this node. Raises ApiError."""


class FormerGateway:
    """Run `wait_until_free` before anything of the agent's is in the kernel, and `run` in one task afterwards."""

    def __init__(
        self,
        state: FormerState,
        list_agents: ListAgents,
        *,
        log: FilteringBoundLogger,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._state = state
        self._list_agents = list_agents
        self._log = log
        self._random = random
        self._trouble: str | None = "not looked yet for what egressgateway may have left"
        self._loaded = asyncio.Event()
        self.hold = ""
        """Why the mesh must not be made yet; "" if it may."""

    def missing(self) -> str | None:
        """What readiness lacks."""
        return self._trouble

    async def wait_until_free(self) -> None:
        """Return when no agent of egressgateway runs on the node. What cannot be told is no permission."""
        while (trouble := await self._look()) is not None:
            if trouble != self._trouble:
                self._log.error("not working on this node", reason=trouble)
            self._trouble = trouble
            await asyncio.sleep(LOOK_SECONDS)
        self._trouble = None

    async def _look(self) -> str | None:
        try:
            found = await self._state.find()
            if not found:
                return None
            agents = await self._list_agents()
        except (ApiError, *KERNEL_ERRORS) as error:
            return sentence(error)
        if agents:
            return (
                f"egressgateway runs on this node ({', '.join(sorted(agents))}), and only one of it and Coil can: "
                "uninstall it, or disable floating addresses"
            )
        self._log.info("egressgateway was on this node", found=len(found), examples=found[:EXAMPLES])
        self.hold = HELD
        return None

    def note_loaded(self) -> None:
        """The node's tables hold everything: what policies are about is led, or dropped, by them."""
        self._loaded.set()

    async def run(self, released: Callable[[], object]) -> None:
        """Until cancelled. What was found is removed when the tables are loaded; then `released` is called."""
        if self.hold:
            await self._loaded.wait()
            await self._remove_all()
            released()
        await asyncio.Event().wait()

    async def _remove_all(self) -> None:
        attempt = 0
        while (left := await self._remove()) is None:
            await asyncio.sleep(REMOVAL_BACKOFF.delay(attempt, self._random))
            attempt += 1
        if left:
            self._log.warning("rules of others use IP sets of egressgateway: these stay", sets=sorted(left))
        self._log.info("what egressgateway left is removed")
        self.hold = ""

    async def _remove(self) -> Collection[str] | None:
        """Which IP sets stay; None if it has not been done."""
        try:
            return await self._state.remove()
        except KERNEL_ERRORS as error:
            self.hold = f"what egressgateway left on this node cannot be removed: {sentence(error)}"
            self._log.error("what egressgateway left cannot be removed", error=sentence(error))
            return None
