"""What an election relies on in a Lease store. Held to it: the store of the tests and the real API server.

Each check gets a store whose Lease does not exist, and a way to delete it that is not the store's.
"""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from coil.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from coil.kube.lease_lock import LeaseSpec
from coil.reconcile.claim import ResourceLock

Delete = Callable[[], Awaitable[None]]
Check = Callable[[ResourceLock, Delete], Awaitable[None]]

FIRST = LeaseSpec(
    holder_identity="first",
    lease_duration_seconds=15,
    acquire_time="2031-02-03T04:05:06.000000Z",
    renew_time="2031-02-03T04:05:07.000000Z",
    lease_transitions=3,
)
RELEASED = LeaseSpec(
    lease_duration_seconds=1,
    acquire_time="2031-02-03T04:05:08.123456Z",
    renew_time="2031-02-03T04:05:08.123456Z",
    lease_transitions=3,
)


async def check_create_and_read(store: ResourceLock, _delete: Delete) -> None:
    assert await store.read() is None
    created = await store.create(FIRST)
    assert created.spec == FIRST
    assert created.metadata.resource_version
    assert await store.read() == created


async def check_only_one_creates(store: ResourceLock, _delete: Delete) -> None:
    await store.create(FIRST)
    with pytest.raises(AlreadyExistsError):
        await store.create(RELEASED)


async def check_replace_needs_the_latest_version(store: ResourceLock, _delete: Delete) -> None:
    old = await store.create(FIRST)
    new = await store.replace(msgspec.structs.replace(old, spec=RELEASED))
    assert new.spec == RELEASED
    assert new.metadata.resource_version != old.metadata.resource_version
    with pytest.raises(ConflictError):
        await store.replace(old)
    assert await store.read() == new


async def check_replacing_with_the_same_changes_nothing(store: ResourceLock, _delete: Delete) -> None:
    """Why every renewal must differ from the one before."""
    lease = await store.create(FIRST)
    assert await store.replace(lease) == lease


async def check_replace_creates_nothing(store: ResourceLock, delete: Delete) -> None:
    lease = await store.create(FIRST)
    await delete()
    with pytest.raises((NotFoundError, ConflictError)):
        await store.replace(msgspec.structs.replace(lease, spec=RELEASED))
    assert await store.read() is None


CHECKS: tuple[Check, ...] = (
    check_create_and_read,
    check_only_one_creates,
    check_replace_needs_the_latest_version,
    check_replacing_with_the_same_changes_nothing,
    check_replace_creates_nothing,
)
