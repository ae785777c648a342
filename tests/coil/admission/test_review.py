"""AdmissionReview v1, both ways."""

import base64
import json
from typing import Any

import msgspec
import pytest

from coil.admission.review import (
    ALLOWED,
    AdmissionRequest,
    Allowed,
    Denied,
    GroupVersionKind,
    Invalid,
    Operation,
    ReviewError,
    Unavailable,
    UserInfo,
    Verdict,
    decode_object,
    decode_review,
    encode_review,
)
from coil.crd.address_pool import AddressPool
from coil.crd.validation import FieldError


def document(**changes: Any) -> dict[str, Any]:
    request = {
        "uid": "uid-1",
        "kind": {"group": "coil.cybozu.com", "version": "v2", "kind": "AddressPool"},
        "resource": {"group": "coil.cybozu.com", "version": "v2", "resource": "addresspools"},
        "name": "pool",
        "operation": "CREATE",
        "userInfo": {"username": "kubernetes-admin"},
        "object": {"metadata": {"name": "pool"}, "spec": {"subnets": [{"ipv4": "10.2.0.0/16"}]}},
        "oldObject": None,
        "dryRun": False,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request | changes}


def answer(verdict: Verdict) -> dict[str, Any]:
    request = AdmissionRequest(
        uid="uid-1",
        kind=GroupVersionKind(group="coil.cybozu.com", version="v2", kind="AddressPool"),
        operation=Operation.CREATE,
        name="pool",
    )
    review = json.loads(encode_review(request, verdict))
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = review["response"]
    assert response["uid"] == "uid-1"
    return response


def test_a_request_as_the_api_server_writes_it() -> None:
    request = decode_review(json.dumps(document()).encode())
    assert (request.uid, request.name, request.operation) == ("uid-1", "pool", Operation.CREATE)
    assert decode_object(request.object, AddressPool).spec.subnets[0].ipv4 == "10.2.0.0/16"
    assert bytes(request.old_object) == b"null"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body is no AdmissionReview"),
        (b"hello", "the body is no AdmissionReview"),
        (b"\xff\xfe", "the body is no AdmissionReview"),
        (b"[" * 100_000, "the body is no AdmissionReview"),
        (b"[]", "Expected `object`"),
        (json.dumps(document() | {"request": None}).encode(), r"\$.request"),
        (json.dumps(document() | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(), "not admission.k8s.io/v1beta1"),
        (json.dumps(document() | {"kind": "Pod"}).encode(), "not admission.k8s.io/v1 Pod"),
        (json.dumps(document(operation="DANCE")).encode(), r"\$.request.operation"),
    ],
)
def test_anything_else_is_refused_with_a_reason(body: bytes, why: str) -> None:
    with pytest.raises(ReviewError, match=why):
        decode_review(body)


@pytest.mark.parametrize("raw", [b"null", b'{"metadata": 1}', b'{"metadata": {}, "spec": {"subnets": 5}}', b"[" * 9000])
def test_an_object_that_does_not_fit_is_no_crash(raw: bytes) -> None:
    with pytest.raises(ReviewError, match="the object cannot be read"):
        decode_object(msgspec.Raw(raw), AddressPool)


def test_allowed() -> None:
    assert answer(ALLOWED) == {"uid": "uid-1", "allowed": True}


def test_a_patch_goes_in_base64() -> None:
    patch = [{"op": "add", "path": "/metadata/finalizers", "value": ["f"]}]
    assert "warnings" not in answer(Allowed(patch))
    assert answer(Allowed(warnings=["it waits"]))["warnings"] == ["it waits"]
    response = answer(Allowed(patch))
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == patch


def test_invalid_is_a_422_that_names_the_fields() -> None:
    errors = [FieldError("spec.subnets[0].ipv4", "is nonsense"), FieldError("spec.subnets[1]", "must go")]
    response = answer(Invalid(errors))
    assert response["allowed"] is False
    status = response["status"]
    assert (status["code"], status["reason"], status["status"]) == (422, "Invalid", "Failure")
    assert status["message"] == (
        'AddressPool.coil.cybozu.com "pool" is invalid: spec.subnets[0].ipv4: is nonsense; spec.subnets[1]: must go'
    )
    assert status["details"]["causes"] == [
        {"reason": "FieldValueInvalid", "field": "spec.subnets[0].ipv4", "message": "is nonsense"},
        {"reason": "FieldValueInvalid", "field": "spec.subnets[1]", "message": "must go"},
    ]
    assert (status["details"]["kind"], status["details"]["name"]) == ("AddressPool", "pool")


def test_who_asks_and_where() -> None:
    user = {"username": "jane", "uid": "7", "groups": ["dev"], "extra": {"scopes": ["a", "b"]}}
    request = decode_review(json.dumps(document(userInfo=user, namespace="shop")).encode())
    assert request.namespace == "shop"
    assert request.user_info == UserInfo(username="jane", uid="7", groups=("dev",), extra={"scopes": ("a", "b")})


def test_denied_is_a_403_with_the_reason() -> None:
    response = answer(Denied("it is in use"))
    assert response["allowed"] is False
    status = response["status"]
    assert (status["code"], status["reason"], status["message"]) == (403, "Forbidden", "it is in use")


def test_unavailable_is_a_503_worth_repeating() -> None:
    response = answer(Unavailable("nobody knows"))
    assert response["allowed"] is False
    status = response["status"]
    assert (status["code"], status["reason"], status["message"]) == (503, "ServiceUnavailable", "nobody knows")
