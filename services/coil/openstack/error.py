"""What Neutron and Octavia say when they do not do what they were asked to.

One refusal comes in many dresses: a quota is status 409 with the type OverQuota in Neutron, 403 in Octavia, and a bare
500 where Octavia cannot have the port of its VIP; and 409 is also "in use", "immutable" and "already there". So a
refusal is classified by what its body says, and by the status only where the body says nothing:

    Neutron   {"NeutronError": {"type": "OverQuota", "message": "…"}}   type: a class of neutron-lib, `exceptions`
    Octavia   {"faultcode": "Client", "faultstring": "…"}               no type: its texts, `octavia.common.exceptions`

A body that is neither was not written by the service. Its 404, that of a proxy or of a path that is not served yet,
proves nothing about the object.

After an UnavailableError of a call that changes something, nobody knows whether it took place: look again.
"""

import re
from typing import Any, Final

import msgspec

LONGEST_MESSAGE: Final = 300
"""What is kept of a service's words, which end up in logs, Events and answers to ADDs."""


class OpenStackError(Exception):
    """A call was refused. `call` is its name here, `code` the type that the body names, or else the status.

    `retry_after` is how many seconds the service asked to wait, if it did.
    """

    def __init__(self, call: str, code: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{call}: {message} ({code})")
        self.call = call
        self.code = code
        self.message = message
        self.retry_after = retry_after


class QuotaError(OpenStackError):
    """The project has as many of these as its quota allows. Only people can change that."""


class ExhaustedError(OpenStackError):
    """The subnet, or the address pool, has no address to give."""


class ImmutableError(OpenStackError):
    """The load balancer has not finished what it was told before."""


class InUseError(OpenStackError):
    """Something that still exists refers to the object."""


class ExistsError(OpenStackError):
    """There is one already: look it up by its identity."""


class NotFoundError(OpenStackError):
    """What was named does not exist; said by the service itself."""


class DeniedError(OpenStackError):
    """The account lacks a right; the message names the rule."""


class UnauthenticatedError(OpenStackError):
    """The credentials are not accepted, not even freshly read ones."""


class ThrottledError(OpenStackError):
    """Too many calls; nothing was done."""


class UnavailableError(OpenStackError):
    """No answer, or none of the service's own handlers: the call may have taken place."""


class InvalidError(OpenStackError):
    """What was asked is wrong. Repeating it does not help."""


class UnsupportedError(OpenStackError):
    """The provider of load balancers lacks it."""


class ConflictError(OpenStackError):
    """The object has changed since it was read."""


Kind = type[OpenStackError]

_TYPES: Final[dict[str, Kind]] = {
    "OverQuota": QuotaError,
    **dict.fromkeys(
        ("IpAddressGenerationFailure", "ExternalIpAddressExhausted", "SubnetAllocationError"), ExhaustedError
    ),
    **dict.fromkeys(("NetworkInUse", "SubnetInUse", "PortInUse", "ServicePortInUse", "PortBound"), InUseError),
    **dict.fromkeys(("RouterInUse", "RouterInterfaceInUseByFloatingIP", "RouterInterfaceInUseByRoute"), InUseError),
    **dict.fromkeys(("SecurityGroupInUse", "FloatingIPPortAlreadyAssociated", "FipAssociated"), InUseError),
    "RouterExternalGatewayInUseByFloatingIp": InUseError,
    **dict.fromkeys(("IpAddressInUse", "IpAddressAlreadyAllocated", "MacAddressInUse"), ExistsError),
    **dict.fromkeys(("SecurityGroupRuleExists", "RouterInterfaceAttachmentConflict"), ExistsError),
    "PortBindingAlreadyExists": ExistsError,
    **dict.fromkeys(("PolicyNotAuthorized", "NotAuthorized", "AdminRequired", "HTTPForbidden"), DeniedError),
    **dict.fromkeys(("HTTPBadRequest", "InvalidInput", "InvalidIpForNetwork", "InvalidIpForSubnet"), InvalidError),
    **dict.fromkeys(("RevisionNumberConstraintFailed", "NetworkMTUSubnetConflict"), ConflictError),
}
"""Neutron's. A type that ends with NotFound is a NotFoundError: each kind has its own."""

_TEXTS: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"\bquota has been met\b|\bquota exceeded\b|\bOverQuota\b", QuotaError),
        (r"\bis immutable and cannot be updated\b|\binvalid state \S+ of loadbalancer resource\b", ImmutableError),
        (r"\bproject busy\b", UnavailableError),
        (r"\bpolicy does not allow this request\b", DeniedError),
        (r"\balready using\b|\balready has\b|\balready an entity\b|\balready exists\b", ExistsError),
        (r"\bVIP IP address is already in use\b", ExistsError),
        (r"\bis in use and cannot be modified\b|\bis in use by\b|\bhas children\b", InUseError),
        (r"\bdoes not support a requested\b|\bprovider '[^']*' (?:is not enabled|was not found)", UnsupportedError),
    )
)
"""Octavia's, which also passes on what Neutron has refused it."""

_STATUSES: Final[dict[int, Kind]] = {
    400: InvalidError,
    401: UnauthenticatedError,
    403: DeniedError,
    404: NotFoundError,
    408: UnavailableError,
    412: ConflictError,
    413: ThrottledError,
    429: ThrottledError,
    501: UnsupportedError,
}
_SAID_BY_ANYBODY: Final = frozenset({401, 408, 413, 429})
"""Statuses that mean the same when a proxy, or Keystone's middleware, in front of the service says them."""


def error_of(call: str, status: int, body: str, *, retry_after: str = "") -> OpenStackError:
    """The error that an answer with that status and body is. `retry_after` is the header of that name."""
    seconds = _seconds(retry_after)
    own, code, text = _read(body)
    text = text or f"status {status} without an explanation"
    if status == 503:
        # With Retry-After it is a limit of calls (RFC 9110, section 10.2.3), else the service's own trouble.
        kind: Kind = UnavailableError if seconds is None else ThrottledError
    else:
        kind = _named(code) or (own and _said(text)) or _plain(status, own=own)
    message = text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"
    return kind(call, code or str(status), message, retry_after=seconds)


def _named(code: str) -> Kind | None:
    return _TYPES.get(code) or (NotFoundError if code.endswith("NotFound") else None)


def _said(text: str) -> Kind | None:
    return next((kind for pattern, kind in _TEXTS if pattern.search(text)), None)


def _plain(status: int, *, own: bool) -> Kind:
    if status >= 500 and status != 501:
        return UnavailableError
    if not own and status not in _SAID_BY_ANYBODY:
        return UnavailableError
    return _STATUSES.get(status, OpenStackError)


def _read(body: str) -> tuple[bool, str, str]:
    """Whether the service itself wrote it, its type of error, and its sentence; "" for what there is not."""
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False, "", " ".join(body.split())
    if not isinstance(document, dict):
        return False, "", " ".join(body.split())
    error = document.get("NeutronError", document)
    if isinstance(error, str):
        return True, "", error
    if not isinstance(error, dict):
        return False, "", " ".join(body.split())
    text = str(error.get("message") or error.get("faultstring") or "")
    return "NeutronError" in document or "faultstring" in document, str(error.get("type") or ""), text


def _seconds(retry_after: str) -> float | None:
    # The header may be a date as well; neither service sends one.
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
