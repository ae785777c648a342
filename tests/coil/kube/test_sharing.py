"""What equal objects have in common exists once, and what differs stays as it was."""

import msgspec

from coil.crd.meta import ObjectMeta, OwnerReference
from coil.kube.sharing import LIMIT, Sharing


def decoded(name: str, *, owner: str = "pool") -> ObjectMeta:
    owners = (OwnerReference(api_version="v1", kind="Pool", name=owner, uid=f"uid-{owner}"),)
    metadata = ObjectMeta(name=name, finalizers=("coil",), owner_references=owners)
    return msgspec.json.decode(msgspec.json.encode(metadata), type=ObjectMeta)


def test_equal_owners_and_finalizers_are_one() -> None:
    sharing, first, second = Sharing(), decoded("a"), decoded("b")
    assert first.owner_references is not second.owner_references
    for metadata in (first, second):
        sharing.share(metadata)
    assert first.owner_references is second.owner_references
    assert first.finalizers is second.finalizers
    assert (first, second) == (decoded("a"), decoded("b"))


def test_different_ones_stay_different() -> None:
    sharing, first, second = Sharing(), decoded("a"), decoded("b", owner="other")
    for metadata in (first, second):
        sharing.share(metadata)
    assert (first, second) == (decoded("a"), decoded("b", owner="other"))


def test_it_does_not_remember_more_and_more() -> None:
    sharing = Sharing()
    for number in range(3 * LIMIT):
        metadata = decoded("a", owner=str(number))
        sharing.share(metadata)
        assert metadata == decoded("a", owner=str(number))
        assert len(sharing._known) <= LIMIT
