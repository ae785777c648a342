"""From answers of OpenStack's services to values. An answer that cannot be read proves nothing: UnavailableError."""

from typing import Any, TypeVar

import msgspec

from coil.openstack.error import UnavailableError

R = TypeVar("R", bound=msgspec.Struct)


def without_empty(**values: str | None) -> dict[str, Any]:
    """Those that are given: for a query, or an object's attributes."""
    return {key: value for key, value in values.items() if value}


def entry_of(answer: Any, key: str, call: str) -> Any:
    """What the answer to `call` has at `key`. Raises UnavailableError."""
    if not isinstance(answer, dict) or key not in answer:
        raise UnavailableError(call, "unreadable", f"its answer has no {key}")
    return answer[key]


def convert(call: str, entry: Any, kind: type[R]) -> R:
    """The object that an entry of the answer to `call` is. Raises UnavailableError."""
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        raise UnavailableError(call, "unreadable", f"its answer cannot be read: {error}") from None
