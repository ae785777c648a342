"""What holders of a Lease rely on in its `ResourceLock`. Held to it: the locks of the tests, and the real API server.

Each check gets a lock whose Lease does not exist, and a way to delete it that is not the lock's.
"""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from coil.crd.meta import ObjectMeta
from coil.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from coil.kube.lease_lock import Lease, LeaseSpec, ResourceLock

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


async def check_create_and_read(lock: ResourceLock, _delete: Delete) -> None:
    assert await lock.read() is None
    created = await lock.create(Lease(spec=FIRST))
    assert created.spec == FIRST
    assert created.metadata.resource_version
    assert await lock.read() == created


async def check_labels_and_annotations_are_kept(lock: ResourceLock, _delete: Delete) -> None:
    metadata = ObjectMeta(labels={"who": "node"}, annotations={"what": "address"})
    created = await lock.create(Lease(metadata=metadata, spec=FIRST))
    replaced = await lock.replace(msgspec.structs.replace(created, spec=RELEASED))
    assert (replaced.metadata.labels, replaced.metadata.annotations) == (metadata.labels, metadata.annotations)
    assert replaced.metadata.name == created.metadata.name


async def check_only_one_creates(lock: ResourceLock, _delete: Delete) -> None:
    await lock.create(Lease(spec=FIRST))
    with pytest.raises(AlreadyExistsError):
        await lock.create(Lease(spec=RELEASED))


async def check_replace_needs_the_latest_version(lock: ResourceLock, _delete: Delete) -> None:
    old = await lock.create(Lease(spec=FIRST))
    new = await lock.replace(msgspec.structs.replace(old, spec=RELEASED))
    assert new.spec == RELEASED
    assert new.metadata.resource_version != old.metadata.resource_version
    with pytest.raises(ConflictError):
        await lock.replace(old)
    assert await lock.read() == new


async def check_replacing_with_the_same_changes_nothing(lock: ResourceLock, _delete: Delete) -> None:
    """Why every renewal must differ from the one before."""
    lease = await lock.create(Lease(spec=FIRST))
    assert await lock.replace(lease) == lease


async def check_replace_creates_nothing(lock: ResourceLock, delete: Delete) -> None:
    lease = await lock.create(Lease(spec=FIRST))
    await delete()
    with pytest.raises((NotFoundError, ConflictError)):
        await lock.replace(msgspec.structs.replace(lease, spec=RELEASED))
    assert await lock.read() is None


CHECKS: tuple[Check, ...] = (
    check_create_and_read,
    check_labels_and_annotations_are_kept,
    check_only_one_creates,
    check_replace_needs_the_latest_version,
    check_replacing_with_the_same_changes_nothing,
    check_replace_creates_nothing,
)
