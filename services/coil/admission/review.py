"""The words that the API server and an admission webhook exchange: AdmissionReview v1, decoded and encoded. Pure.

A review asks about one change of one object; a verdict answers it. The objects stay raw JSON here, because this
package knows no kind: a handler decodes what it is interested in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar

import msgspec

from coil.crd.meta import Struct
from coil.crd.validation import FieldError, render_errors

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

T = TypeVar("T")


class ReviewError(Exception):
    """What was sent is not a review that can be answered; the message says why."""


class Operation(Enum):
    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


class GroupVersionKind(Struct, frozen=True, kw_only=True):
    group: str = ""
    version: str
    kind: str


class UserInfo(Struct, frozen=True, kw_only=True):
    """Who asks, as the API server has authenticated them."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class AdmissionRequest(Struct, frozen=True, kw_only=True):
    """One change that is asked for. `name` is empty while the API server is still to make one up.

    `object` is the state that is wished for and `old_object` the one before, as JSON; `null` where there is none.
    """

    uid: str
    kind: GroupVersionKind
    operation: Operation
    namespace: str = ""
    name: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(Struct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    request: AdmissionRequest


@dataclass(frozen=True, slots=True)
class Allowed:
    """Go on, with the object changed by `patch`, JSON patch operations (RFC 6902), if there are any.

    `warnings` are sentences that kubectl prints: of up to 120 characters, says Kubernetes, more may be cut.
    """

    patch: Sequence[dict[str, Any]] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Invalid:
    """422: the object breaks rules. There is at least one error."""

    errors: Sequence[FieldError]


@dataclass(frozen=True, slots=True)
class Denied:
    """403: nothing is wrong with the object, but this is not to be done to it now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """503: nobody can say at the moment; the same request may succeed later."""

    reason: str


Verdict: TypeAlias = Allowed | Invalid | Denied | Unavailable
ALLOWED = Allowed()

_DECODER = msgspec.json.Decoder(_Review)


def decode_review(body: bytes) -> AdmissionRequest:
    """What the API server asks. Raises ReviewError."""
    try:
        review = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"the body is no {KIND}: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise ReviewError(f"{API_VERSION} {KIND} is expected, not {review.api_version} {review.kind}")
    return review.request


def decode_object(raw: msgspec.Raw, kind: type[T]) -> T:
    """The part of an object that `kind` has fields for. Raises ReviewError naming the field that does not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"the object cannot be read: {error}") from error


def encode_review(request: AdmissionRequest, verdict: Verdict) -> bytes:
    """The answer to `request`, which the API server passes on to the user."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": isinstance(verdict, Allowed)}
    match verdict:
        case Allowed(patch, warnings):
            if warnings:
                response["warnings"] = list(warnings)
            if patch:
                # Bytes become base64, as the API server wants a patch.
                response |= {"patchType": "JSONPatch", "patch": msgspec.json.encode(patch)}
        case Invalid(errors):
            response["status"] = _invalid_status(request, errors)
        case Denied(reason):
            response["status"] = _status(HTTPStatus.FORBIDDEN, "Forbidden", reason)
        case Unavailable(reason):
            response["status"] = _status(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", reason)
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _invalid_status(request: AdmissionRequest, errors: Sequence[FieldError]) -> dict[str, Any]:
    """As the API server's own validation answers; kubectl prints the causes, everybody else the message."""
    kind = request.kind
    message = f'{kind.kind}.{kind.group} "{request.name}" is invalid: {render_errors(errors)}'
    details = {
        "group": kind.group,
        "kind": kind.kind,
        "name": request.name,
        "causes": [{"reason": "FieldValueInvalid", "field": error.path, "message": error.message} for error in errors],
    }
    return _status(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message) | {"details": details}


def _status(code: HTTPStatus, reason: str, message: str) -> dict[str, Any]:
    """`metav1.Status`."""
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "code": int(code),
        "reason": reason,
        "message": message,
    }
