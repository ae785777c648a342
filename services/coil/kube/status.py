"""From the body of an unsuccessful answer to an exception.

The API server explains itself with a Status document. A body that is none (a proxy's HTML page, nothing at
all, "404 page not found" of a path that is not served yet) was not written by the API server's handlers and
proves nothing about the object: in particular its 404 must never be read as "the object is gone".
"""

from http import HTTPStatus

import msgspec

from coil.crd.meta import Struct
from coil.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NamespaceTerminatingError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)

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
    kind = UnauthorizedError if code == HTTPStatus.UNAUTHORIZED else UnavailableError
    return kind(
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
