"""Has one object of an identity in Neutron: found, or else created.

What is created must be found again: an account that cannot see what it makes would make more of it until its quota ends
(`InvisibleError`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.neutron.identity import ClusterId, cluster_tag, parse_identity
from coil.neutron.resource import Resource
from coil.openstack.neutron import Neutron, own

R = TypeVar("R", bound=Resource)

LOOK_AGAIN: Final = (1.0, 4.0)
"""Seconds before each further look for what was just created: a replica of Neutron's database may lag."""


class InvisibleError(Exception):
    """What was just created cannot be found: nothing more may be created."""


class OwnedObjects:
    """One for each term."""

    def __init__(
        self,
        neutron: Neutron,
        *,
        cluster: ClusterId,
        log: FilteringBoundLogger,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._neutron = neutron
        self._cluster = cluster
        self._log = log
        self._sleep = sleep
        self._blind: InvisibleError | None = None

    async def have(
        self,
        name: str,
        collection: str,
        find: Callable[[], Awaitable[Iterable[R]]],
        create: Callable[[], Awaitable[R]],
        discard: Callable[[Any], Awaitable[None]],
    ) -> R:
        """The one object of that name: found, or else created, tagged and found again. Idempotent.

        `collection` is the plural in the API's paths. Raises OpenStackError or InvisibleError.
        """
        found: list[R] = own(await find(), name)
        if not found:
            if self._blind is not None:
                raise self._blind
            await create()
            found = own(await find(), name)
            for pause in LOOK_AGAIN:
                if not found:
                    await self._sleep(pause)
                    found = own(await find(), name)
        if not found:
            self._blind = InvisibleError(
                f"{name} was created among the {collection}, and this account does not see it there; nothing more is "
                "created until coil-raven is started again"
            )
            raise self._blind
        only = await self._only(found, discard)
        if (tag := cluster_tag(self._cluster)) not in only.tags:
            await self._neutron.set_tag(collection, only.id, tag)
        return only

    async def _only(self, found: list[R], discard: Callable[[Any], Awaitable[None]]) -> R:
        """One of several that have the same identity: those that a lost answer has doubled are deleted."""
        first, *others = sorted(found, key=lambda resource: resource.id)
        for other in others:
            self._log.warning("doubled object deleted", name=other.name, id=other.id)
            await discard(other.id)
        return first

    def is_own(self, name: str) -> bool:
        """Whether the name is an identity of this cluster."""
        identity = parse_identity(name)
        return identity is not None and identity.cluster == self._cluster
