"""Keeps the security groups of ports that are plugged in as the annotations of their pods have them.

An annotation that cannot be read, or is gone, changes nothing: what was known last holds, and not everything passes.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey
from coil.reconcile.backoff import Backoff
from coild.model.port_error import PortError
from coild.neutron.bindings import Bindings
from coild.neutron.handoffs import PodHandoffs
from coild.neutron.ledger import PortLedger

_PACE: Final = Backoff(base=0.2, cap=30.0)


class RuleFollower:
    """One per process. `random` gives [0, 1)."""

    def __init__(
        self,
        ledger: PortLedger,
        bindings: Bindings,
        handoffs: PodHandoffs,
        *,
        random: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._ledger = ledger
        self._bindings = bindings
        self._handoffs = handoffs
        self._random = random
        self._log = log

    async def settle(self, key: AttachmentKey) -> None:
        """Have the rules of the attachment's port hold, as its pod's annotation has them now. Idempotent.

        The journal knows them before the kernel does, so a process that is killed in between begins with the new ones.
        Raises PortError.
        """
        holding = self._ledger.find(key)
        if holding is None or not holding.bound:
            return
        noted = self._handoffs.find(holding.pod)
        if noted is None or noted.port != holding.port.port or noted.rules == holding.port.rules:
            return
        self._ledger.note_rules(key, noted.rules)
        if (changed := self._ledger.find(key)) is not None:
            try:
                await self._bindings.apply_rules(changed.binding)
            except BaseException:
                # They count as not known, so that the next look tries again.
                self._ledger.note_rules(key, holding.port.rules)
                raise

    async def run(self) -> None:
        """Follow all ports, for ever; after a failure, again and ever later."""
        attempt = 0
        due = [holding.key for holding in self._ledger.held()]
        while True:
            failed = {key for key in due if not await self._try(key)}
            attempt = attempt + 1 if failed else 0
            changed: frozenset[str] = frozenset()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PACE.delay(attempt - 1, self._random) if failed else None):
                    changed = await self._handoffs.changes()
            held = self._ledger.held()
            due = [each.key for each in held if each.key in failed or each.pod.full_name in changed]

    async def _try(self, key: AttachmentKey) -> bool:
        try:
            await self.settle(key)
        except PortError as error:
            self._log.warning("the rules of a port are not what they should be", error=str(error))
            return False
        return True
