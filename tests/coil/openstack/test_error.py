"""The same refusal in many dresses: one row for each that was seen, with its source."""

import json

import pytest

from coil.openstack.error import (
    ConflictError,
    DeniedError,
    ExhaustedError,
    ExistsError,
    ImmutableError,
    InUseError,
    InvalidError,
    NotFoundError,
    OpenStackError,
    QuotaError,
    ThrottledError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
    error_of,
)


def neutron(kind: str, message: str = "said") -> str:
    return json.dumps({"NeutronError": {"type": kind, "message": message, "detail": ""}})


def octavia(message: str) -> str:
    return json.dumps({"faultcode": "Client", "faultstring": message, "debuginfo": None})


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # neutron-lib, exceptions
        (409, neutron("OverQuota", "Quota exceeded for resources: ['port']."), QuotaError),
        (409, neutron("IpAddressGenerationFailure"), ExhaustedError),
        (409, neutron("ExternalIpAddressExhausted"), ExhaustedError),
        (409, neutron("NetworkInUse"), InUseError),
        (409, neutron("SubnetInUse"), InUseError),
        (409, neutron("RouterInUse"), InUseError),
        (409, neutron("SecurityGroupInUse"), InUseError),
        (409, neutron("IpAddressInUse"), ExistsError),
        (409, neutron("SecurityGroupRuleExists"), ExistsError),
        (404, neutron("PortNotFound"), NotFoundError),
        (404, neutron("SubnetNotFound"), NotFoundError),
        (404, neutron("HTTPNotFound"), NotFoundError),
        (403, neutron("PolicyNotAuthorized", "rule:create_port is disallowed"), DeniedError),
        (400, neutron("HTTPBadRequest"), InvalidError),
        (412, neutron("RevisionNumberConstraintFailed"), ConflictError),
        (409, neutron("SomethingNew"), OpenStackError),
        # octavia, common/exceptions.py
        (403, octavia("Quota has been met for resources: Load Balancer"), QuotaError),
        (500, octavia("Provider 'amphora' reports error: Quota exceeded for resources: ['port']."), QuotaError),
        (403, octavia("Policy does not allow this request to be performed."), DeniedError),
        (409, octavia("Load Balancer 6f is immutable and cannot be updated."), ImmutableError),
        (409, octavia("Invalid state PENDING_UPDATE of loadbalancer resource 6f"), ImmutableError),
        (
            409,
            octavia("Another Listener on this Load Balancer is already using protocol TCP and protocol_port 80"),
            ExistsError,
        ),
        (409, octavia("Another member on this pool is already using ip 10.8.0.4 on protocol_port 80"), ExistsError),
        (409, octavia("This pool already has a health monitor"), ExistsError),
        (409, octavia("The VIP IP address is already in use: 10.96.0.5"), ExistsError),
        (409, octavia("Pool 6f is in use and cannot be modified."), InUseError),
        (501, octavia("Provider 'ovn' does not support a requested option: session persistence"), UnsupportedError),
        (400, octavia("Provider 'ovn' is not enabled."), UnsupportedError),
        (404, octavia("Load Balancer 6f not found."), NotFoundError),
        (503, octavia("Project busy.  Unable to lock the project.  Please try again."), UnavailableError),
        # what stands in front of them
        (401, "Authentication required", UnauthenticatedError),
        (
            401,
            json.dumps({"error": {"code": 401, "title": "Unauthorized", "message": "expired"}}),
            UnauthenticatedError,
        ),
        (429, "slow down", ThrottledError),
        (413, json.dumps({"overLimit": {"message": "This request was rate-limited."}}), ThrottledError),
        (500, "<html>oops</html>", UnavailableError),
        (502, "", UnavailableError),
        (503, "", UnavailableError),
        (504, "gateway time-out", UnavailableError),
        # A 404 that the service has not written says nothing about the object.
        (404, "<html>404 Not Found</html>", UnavailableError),
        (404, "", UnavailableError),
        (403, "<html>forbidden by the proxy</html>", UnavailableError),
        (404, "[1]", UnavailableError),
        (404, json.dumps({"NeutronError": ["odd"]}), UnavailableError),
        (404, "[" * 100_000, UnavailableError),
    ],
)
def test_each_refusal_is_told_apart(status: int, body: str, kind: type[OpenStackError]) -> None:
    assert type(error_of("create port", status, body)) is kind


def test_a_pause_that_was_asked_for_is_known() -> None:
    error = error_of("create port", 503, "", retry_after="7")
    assert isinstance(error, ThrottledError)
    assert error.retry_after == 7
    assert error_of("create port", 429, "", retry_after="Wed, 25 Nov 2026 20:00:00 GMT").retry_after is None


def test_the_words_are_kept_and_cut() -> None:
    error = error_of("create port", 409, neutron("OverQuota", "word " * 200))
    assert str(error).startswith("create port: word word")
    assert str(error).endswith("(OverQuota)")
    assert len(error.message) < 310
