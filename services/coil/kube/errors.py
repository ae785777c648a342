"""What the API server's refusals, and the network's, look like to the rest of the suite, and how an unsuccessful answer
becomes one of them.

A caller tells apart what it can act upon: the object is missing, somebody else was faster, the request is
wrong, or the server cannot be heard at the moment. After an UnavailableError of a write nobody knows
whether the write took place; level-triggered callers look again.

The API server explains itself with a Status document. A body that is none (a proxy's HTML page, nothing at
all, "404 page not found" of a path that is not served yet) was not written by the API server's handlers and
proves nothing about the object: in particular its 404 must never be read as "the object is gone".
"""

from http import HTTPStatus

import msgspec

from coil.crd.meta import Struct


class ApiError(Exception):
    """The API server answered a request with anything but success.

    `status` is the HTTP status (0: there was no answer), `reason` the machine-readable word of the Status
    document ("" when there was none), `retry_after` the seconds the server asked to wait, or None.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class UnauthorizedError(ApiError):
    """401: the server does not accept our credentials, not even freshly read ones."""


class ForbiddenError(ApiError):
    """403: the role of our service account does not allow this."""


class NamespaceTerminatingError(ForbiddenError):
    """403 on create, whoever asks: the namespace is being deleted, and all that is in it goes with it."""


class NotFoundError(ApiError):
    """404, said by the API server itself: there is no such object."""


class AlreadyExistsError(ApiError):
    """409 on create: there is an object of that name."""


class ConflictError(ApiError):
    """409: the object has changed since it was read, or a precondition does not hold."""


class GoneError(ApiError):
    """410: the resource version or continue token is too old. List again."""


class InvalidError(ApiError):
    """422: validation or an admission webhook refused the document. The message names the field."""


class UnavailableError(ApiError):
    """Network trouble, 429, 5xx, or an answer nobody can read: worth trying again after a while."""


class NotServedError(UnavailableError):
    """404 without a Status document: the API server has no such group or version, or somebody else has answered."""


EXCERPT_BYTES = 200


class StatusCause(Struct, frozen=True, kw_only=True):
    reason: str = ""


class StatusDetails(Struct, frozen=True, kw_only=True):
    retry_after_seconds: int = 0
    causes: list[StatusCause] | None = None


class Status(Struct, frozen=True, kw_only=True):
    """`metav1.Status`, as far as it is used."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


_NAMESPACE_TERMINATING = "NamespaceTerminating"
"""A cause, as k8s.io/api/core/v1 has it (`NamespaceTerminatingCause`)."""

_WITHOUT_STATUS: dict[int, type[ApiError]] = {
    HTTPStatus.UNAUTHORIZED: UnauthorizedError,
    HTTPStatus.NOT_FOUND: NotServedError,
}
_DECODER = msgspec.json.Decoder(Status)
_BY_CODE: dict[int, type[ApiError]] = {
    HTTPStatus.UNAUTHORIZED: UnauthorizedError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: GoneError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidError,
    HTTPStatus.TOO_MANY_REQUESTS: UnavailableError,
}


def parse_error(code: int, body: bytes, *, what: str, retry_after: str = "") -> ApiError:
    """The exception for an answer with HTTP status `code`, to a request that `what` describes.

    `retry_after` is the header of that name; only its form in seconds is understood, which is the only
    one that Kubernetes sends.
    """
    try:
        status = _DECODER.decode(body)
    except msgspec.MsgspecError:
        status = Status()
    if status.kind == "Status":
        return error_of(status, code=code, what=what, retry_after=_seconds(retry_after))
    return _WITHOUT_STATUS.get(code, UnavailableError)(
        f"{what}: HTTP {code} without a Status document: {excerpt(body)}",
        status=code,
        retry_after=_seconds(retry_after),
    )


def error_of(status: Status, *, code: int, what: str, retry_after: float | None = None) -> ApiError:
    """The exception that a Status document stands for, with `code` deciding (it may come in a watch event)."""
    kind = _BY_CODE.get(code, UnavailableError if code >= HTTPStatus.INTERNAL_SERVER_ERROR else ApiError)
    if kind is ConflictError and status.reason == "AlreadyExists":
        kind = AlreadyExistsError
    if kind is ForbiddenError and _NAMESPACE_TERMINATING in _causes(status):
        kind = NamespaceTerminatingError
    if retry_after is None and status.details is not None and status.details.retry_after_seconds > 0:
        retry_after = float(status.details.retry_after_seconds)
    explanation = status.message or status.reason or "no explanation"
    return kind(f"{what}: {explanation} (HTTP {code})", status=code, reason=status.reason, retry_after=retry_after)


def excerpt(body: bytes | bytearray) -> str:
    """The beginning of an unreadable body, printable, for a message."""
    if not body:
        return "an empty body"
    cut = body[:EXCERPT_BYTES].decode(errors="replace")
    return repr(cut + "…" if len(body) > EXCERPT_BYTES else cut)


def _causes(status: Status) -> set[str]:
    details = status.details or StatusDetails()
    return {cause.reason for cause in details.causes or ()}


def _seconds(header: str) -> float | None:
    return float(header) if header.isascii() and header.isdigit() else None
