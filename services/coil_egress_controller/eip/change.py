"""What an admission request changes: the part that is the same for EgressGateways and EgressGatewayPolicies."""

from typing import Any, TypeVar

from coil.admission.review import AdmissionRequest, ReviewError, decode_object
from coil.crd.meta import ObjectMeta, Struct

T = TypeVar("T")


class _AnyObject(Struct, frozen=True, kw_only=True):
    """One whose spec nobody has looked at yet; it may be anything."""

    metadata: ObjectMeta
    spec: Any = None


def changes_spec(request: AdmissionRequest) -> bool:
    """Of an update. Raises ReviewError for what is no object."""
    new, old = decode_object(request.object, _AnyObject), decode_object(request.old_object, _AnyObject)
    return bool(new.spec != old.spec)


def try_decode(raw: Any, kind: type[T]) -> T | None:
    """An object before a change. One that cannot be decoded has nothing worth keeping: its successor is a new one."""
    try:
        return decode_object(raw, kind)
    except ReviewError:
        return None
