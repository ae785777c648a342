import json

import pytest

from coil.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NamespaceTerminatingError,
    NotFoundError,
    NotServedError,
    UnauthorizedError,
    UnavailableError,
    parse_error,
)
from tests.coil.kube.faulty_server import status_document


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", ApiError),
        (401, "Unauthorized", UnauthorizedError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", NotFoundError),
        (405, "MethodNotAllowed", ApiError),
        (409, "AlreadyExists", AlreadyExistsError),
        (409, "Conflict", ConflictError),
        (409, "", ConflictError),
        (410, "Expired", GoneError),
        (410, "Gone", GoneError),
        (422, "Invalid", InvalidError),
        (429, "TooManyRequests", UnavailableError),
        (500, "InternalError", UnavailableError),
        (503, "ServiceUnavailable", UnavailableError),
        (504, "Timeout", UnavailableError),
    ],
)
def test_a_status_document_names_the_error(code: int, reason: str, kind: type[ApiError]) -> None:
    body = json.dumps(status_document(code, reason=reason, message="because")).encode()
    error = parse_error(code, body, what="GET /x")
    assert type(error) is kind
    assert (error.status, error.reason) == (code, reason)
    assert str(error) == f"GET /x: because (HTTP {code})"


@pytest.mark.parametrize(
    ("causes", "kind"),
    [
        ([{"reason": "NamespaceTerminating", "field": "metadata.namespace"}], NamespaceTerminatingError),
        ([{"reason": "Other"}], ForbiddenError),
        (None, ForbiddenError),
    ],
)
def test_a_namespace_that_goes_is_no_missing_right(causes: list[dict[str, str]], kind: type[ApiError]) -> None:
    body = json.dumps({**status_document(403, reason="Forbidden"), "details": {"causes": causes}}).encode()
    assert type(parse_error(403, body, what="POST /x")) is kind


@pytest.mark.parametrize("code", [302, 400, 403, 409, 410, 422, 500, 502])
@pytest.mark.parametrize("body", [b"", b"404 page not found", b"<html>\xff</html>", b"{}", b"[]", b"null"])
def test_nothing_is_concluded_from_a_body_that_is_no_status(code: int, body: bytes) -> None:
    error = parse_error(code, body, what="GET /x")
    assert type(error) is UnavailableError
    assert error.status == code


def test_of_a_404_without_a_status_no_object_is_taken_to_be_gone() -> None:
    error = parse_error(404, b"404 page not found\n", what="GET /apis/x/v1/things")
    assert type(error) is NotServedError
    assert isinstance(error, UnavailableError)


def test_a_refused_credential_is_known_without_a_status() -> None:
    assert type(parse_error(401, b"Unauthorized", what="GET /x")) is UnauthorizedError


def test_the_message_shows_only_the_beginning_of_a_page() -> None:
    error = parse_error(502, b"<html>" + b"x" * 10_000, what="GET /x")
    assert "<html>xxx" in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("7", {}, 7.0),
        ("", {"retryAfterSeconds": 3}, 3.0),
        ("0", {}, 0.0),
        ("soon", {}, None),
        ("-1", {}, None),
        ("", {}, None),
    ],
)
def test_the_pause_that_the_server_asks_for(header: str, details: dict[str, int], seconds: float | None) -> None:
    body = json.dumps({**status_document(429), "details": details}).encode()
    assert parse_error(429, body, what="GET /x", retry_after=header).retry_after == seconds
    assert parse_error(503, b"", what="GET /x", retry_after="5").retry_after == 5.0
