"""Looks for data planes of other programs that carry pods' packets past policies, and tells the EgressTunnel."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.meta import Condition
from coil.eip.policy_bypass import bypass_condition
from coil.kernel.link import LinkName
from coil.runtime.log import describe_error
from coil_egress_agent.eip.kernel import KERNEL_ERRORS

LOOK_SECONDS: Final = 60.0
"""Between two looks: other data planes come with their links, and go with them, which is rare."""


class BypassWatch:
    """`run` is its task. `note` is called with the condition after each look that succeeds; what was found last stands
    after one that fails.
    """

    def __init__(
        self,
        link_names: Callable[[], Awaitable[Collection[LinkName]]],
        *,
        note: Callable[[Condition], object],
        log: FilteringBoundLogger,
    ) -> None:
        self._link_names = link_names
        self._note = note
        self._log = log
        self._told = ""
        """The message or the error that was logged last: the same one is not logged at each look."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One look; errors of the kernel are logged, not raised."""
        try:
            condition = bypass_condition(await self._link_names())
        except KERNEL_ERRORS as error:
            if (text := describe_error(error)) != self._told:
                self._log.warning("not looked for data planes that bypass policies", error=text)
            self._told = text
            return
        if condition.status != "False" and condition.message != self._told:
            self._log.warning("what pods send may go past policies", reason=condition.message)
        self._told = condition.message
        self._note(condition)
