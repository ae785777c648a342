"""Unplugs the ports of attachments that are gone, where that could not be done at once: after a kill, a reboot, or a
binding that failed.

A DEL does not wait for it, so a pod can end whatever is wrong with a binding. But nobody else gets the port before.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from structlog.typing import FilteringBoundLogger

from coil.neutron.resource import PortId
from coil.reconcile.backoff import Backoff
from coild.model.port_error import PortError
from coild.neutron.bindings import Bindings
from coild.neutron.ledger import PortLedger

CONCURRENT: Final = 4
_PACE: Final = Backoff(base=1.0, cap=300.0)


class Unplugging:
    """One per process. `random` gives [0, 1)."""

    def __init__(
        self, ledger: PortLedger, bindings: Bindings, *, random: Callable[[], float], log: FilteringBoundLogger
    ) -> None:
        self._ledger = ledger
        self._bindings = bindings
        self._random = random
        self._log = log
        self._turns: WeakValueDictionary[PortId, asyncio.Lock] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(CONCURRENT)

    async def settle(self, port: PortId) -> None:
        """Return once the port is unplugged from what is gone; at once where nothing is. Raises PortError.

        Cancelled, it may be plugged in still.
        """
        if self._ledger.find_left(port) is None:
            return
        turn = self._turns.setdefault(port, asyncio.Lock())
        async with turn:
            if (holding := self._ledger.find_left(port)) is not None:
                await self._bindings.unbind(holding.binding)
                self._ledger.settle(port)

    async def run(self) -> None:
        """Unplug whatever there is, for ever; after a failure, again and ever later."""
        attempt = 0
        while True:
            await self._ledger.something_left.wait()
            self._ledger.something_left.clear()
            outcomes = await asyncio.gather(*map(self._try, [holding.port.port for holding in self._ledger.left()]))
            if all(outcomes):
                attempt = 0
                continue
            await asyncio.sleep(_PACE.delay(attempt, self._random))
            attempt += 1
            self._ledger.something_left.set()

    async def _try(self, port: PortId) -> bool:
        async with self._slots:
            try:
                await self.settle(port)
            except PortError as error:
                self._log.warning("a port is still to be unplugged", port=port, error=str(error))
                return False
        return True
