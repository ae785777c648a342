"""Which binding plugs in a port: one of this process, or the executable of the port's type.

Each call has its time, and is measured. There are never two at once for one port: the ledger gives it to one attachment
only, and after it was unplugged from the one before.
"""

import time
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

from structlog.typing import FilteringBoundLogger

from coild.model.port_error import BindError, BindTimeoutError, PortTypeUnknownError
from coild.neutron.binding import Binding, PortBinding
from coild.neutron.executable import ExecutableBinding


class BindOutcome(StrEnum):
    """How a call of a binding ended."""

    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


BindObserver: TypeAlias = Callable[[str, str, BindOutcome, float], None]
"""Called after each call: with the port's type, `bind` or `unbind`, the outcome, and the seconds that it took."""


class _Call(Protocol):
    async def __call__(self, binding: PortBinding, *, timeout: float) -> None: ...


class Bindings:
    """One per process. `timeout` of a call is in seconds; `owner` must own an executable and its folder."""

    def __init__(
        self,
        folder: Path,
        builtin: Mapping[str, Binding],
        *,
        timeout: float,
        observe: BindObserver,
        log: FilteringBoundLogger,
        owner: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._builtin = builtin
        self._timeout = timeout
        self._observe = observe
        self._log = log
        self._owner = owner
        self._clock = clock
        self.trouble: str | None = None
        """Why the node was not made ready for a type of ports the last time."""

    async def prepare(self, bound: Collection[PortBinding]) -> None:
        """Have each binding of this process see to what the node needs. Idempotent; failures are `trouble`."""
        troubles = []
        for type_, binding in self._builtin.items():
            try:
                await binding.prepare([each for each in bound if each.port.type == type_])
            except BindError as error:
                troubles.append(f"ports of type {type_}: {error}")
                self._log.warning("the node is not ready for ports of a type", type=type_, error=str(error))
        self.trouble = "; ".join(troubles) or None

    async def bind(self, binding: PortBinding) -> None:
        """Plug the port in. Raises BindError, BindTimeoutError or PortTypeUnknownError. Cancelled, it is undone."""
        await self._measure(binding, "bind", self._of(binding).bind)

    async def apply_rules(self, binding: PortBinding) -> None:
        """Have the rules of a port that is plugged in hold. Idempotent. Raises as `bind` does."""
        await self._of(binding).apply_rules(binding, timeout=self._timeout)

    async def unbind(self, binding: PortBinding) -> None:
        """Unplug the port. Idempotent. Raises as `bind` does. Cancelled, it may be plugged in still."""
        await self._measure(binding, "unbind", self._of(binding).unbind)

    def _of(self, binding: PortBinding) -> Binding:
        type_ = binding.port.type
        return self._builtin.get(type_) or ExecutableBinding(self._folder, type_, owner=self._owner)

    async def _measure(self, binding: PortBinding, verb: str, call: _Call) -> None:
        began = self._clock()
        outcome: BindOutcome | None = BindOutcome.FAILED
        try:
            await call(binding, timeout=self._timeout)
            outcome = BindOutcome.DONE
        except BindTimeoutError:
            outcome = BindOutcome.TIMED_OUT
            raise
        except PortTypeUnknownError:
            # Its label would be a word that nothing on this node knows.
            outcome = None
            raise
        finally:
            if outcome is not None:
                self._observe(binding.port.type, verb, outcome, self._clock() - began)
