"""CniError as a status and back, and against protobuf's own Any and Status."""

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from coil.cnirpc.error import MAX_DETAILS, MAX_MSG, CniError, CniErrorCode, CniStatusCodec, cni_error, grpc_error
from tests.coil_cni.protobuf import protobuf_message

CODEC = CniStatusCodec()


def over_the_wire(error: CniError) -> CniError:
    sent = grpc_error(error)
    data = CODEC.encode(sent.status, sent.message, sent.details)
    return cni_error(GRPCError(sent.status, sent.message, CODEC.decode(sent.status, sent.message, data)))


@pytest.mark.parametrize("code", CniErrorCode)
def test_round_trip(code: CniErrorCode) -> None:
    received = over_the_wire(CniError(code, "the pool “default” is dry", "100 %\n"))
    assert (received.code, received.msg, received.details) == (code, "the pool “default” is dry", "100 %\n")


def test_protobuf_reads_it() -> None:
    sent = grpc_error(CniError(CniErrorCode.TRY_AGAIN_LATER, "later", "details"))
    status = protobuf_message("google.rpc.Status")
    status.ParseFromString(CODEC.encode(sent.status, sent.message, sent.details))
    detail = protobuf_message("pkg.cnirpc.CNIError")
    assert status.details[0].Unpack(detail)
    assert (status.code, status.message) == (Status.UNAVAILABLE.value, "later")
    assert (detail.code, detail.msg, detail.details) == (11, "later", "details")


def test_it_reads_protobuf_and_leaves_other_details_out() -> None:
    status = protobuf_message("google.rpc.Status", code=14, message="later")
    status.details.add().Pack(protobuf_message("pkg.cnirpc.AddResponse", result=b"x"))
    status.details.add().Pack(protobuf_message("pkg.cnirpc.CNIError", code=11, msg="later"))
    (detail,) = CODEC.decode(Status.UNAVAILABLE, "later", status.SerializeToString())
    assert (detail.code.value, detail.msg) == (11, "later")


def test_overlong_texts_are_cut() -> None:
    received = over_the_wire(CniError(CniErrorCode.INTERNAL, "m" * 10_000, "d" * 100_000))
    assert (len(received.msg), len(received.details)) == (MAX_MSG, MAX_DETAILS)
    assert received.msg.endswith("m…")


@pytest.mark.parametrize("details", [None, [], ["something else"]])
def test_a_status_without_a_cni_error_is_internal(details: object) -> None:
    error = cni_error(GRPCError(Status.UNAVAILABLE, "gone", details))
    assert (error.code, error.msg, error.details) == (CniErrorCode.INTERNAL, "gone", "UNAVAILABLE")


def test_text_of_the_exception() -> None:
    assert str(CniError(CniErrorCode.INTERNAL, "no link", "ENODEV")) == "no link: ENODEV"
    assert str(CniError(CniErrorCode.INTERNAL, "no link")) == "no link"
