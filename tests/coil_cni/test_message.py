"""The hand-written wire format against protobuf itself, with descriptors compiled from protos/cni.proto."""

from typing import Any

import pytest
from google.protobuf import any_pb2
from hypothesis import given
from hypothesis import strategies as st

from coil_cni.error import CniError
from coil_cni.invocation import Invocation
from coil_cni.message import decode_add_response, decode_status, encode_cni_args
from coil_cni.netconf import NetConf
from tests.coil_cni.protobuf import protobuf_message

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def rpc_status(code: int, message: str, *details: Any) -> Any:
    status = protobuf_message("google.rpc.Status", code=code, message=message)
    for detail in details:
        status.details.add().Pack(detail)
    return status


@given(text, text, st.dictionaries(text, text, max_size=4), st.binary(max_size=40_000), st.booleans(), st.booleans())
def test_cni_args_as_protobuf_reads_them(
    name: str, path: str, pod_args: dict[str, str], stdin: bytes, chained: bool, in_sandbox: bool
) -> None:
    variables = {"CNI_CONTAINERID": name, "CNI_NETNS": path, "CNI_IFNAME": name, "CNI_PATH": path}
    prev_result: dict[str, object] = {
        "ips": [{"address": "10.1.2.3/32"}, {"address": "fd00::1/128"}],
        "interfaces": [{"name": "eth0", "sandbox": "/run/netns/a" if in_sandbox else ""}],
    }
    conf = NetConf("1.0.0", "/run/coild.sock", prev_result if chained else None)
    encoded = encode_cni_args(Invocation("ADD", variables, pod_args), conf, stdin)
    message = protobuf_message("pkg.cnirpc.CNIArgs")
    message.ParseFromString(encoded)
    assert (message.container_id, message.netns, message.ifname, message.path) == (name, path, name, path)
    assert dict(message.args) == pod_args | {"IS_CHAINED": "true" if chained else "false"}
    assert message.stdin_data == stdin
    assert list(message.ips) == (["10.1.2.3", "fd00::1"] if chained else [])
    assert dict(message.interfaces) == ({"eth0": in_sandbox} if chained else {})


@given(st.binary(max_size=40_000))
def test_add_response_from_protobuf(result: bytes) -> None:
    assert decode_add_response(protobuf_message("pkg.cnirpc.AddResponse", result=result).SerializeToString()) == result


@given(st.sampled_from([0, 1, 3, 7, 11, 999]), text, text)
def test_status_from_protobuf(code: int, msg: str, details: str) -> None:
    detail = protobuf_message("pkg.cnirpc.CNIError", code=code, msg=msg, details=details)
    error = decode_status(rpc_status(14, msg, detail).SerializeToString())
    assert error is not None
    assert (error.code, error.msg, error.details) == (code, msg, details)


def test_details_of_another_type_are_passed_over() -> None:
    other = any_pb2.Any(type_url="a", value=b"b")
    assert decode_status(rpc_status(14, "away", other).SerializeToString()) is None
    detail = protobuf_message("pkg.cnirpc.CNIError", code=7, msg="no")
    error = decode_status(rpc_status(14, "away", other, detail).SerializeToString())
    assert error is not None
    assert error.code == 7


def test_unknown_fields_are_skipped() -> None:
    #                             varint      fixed64             text            fixed32       the result
    data = bytes.fromhex("107f2101020304050607081a01612d01020304") + b"\x0a\x02ok"
    assert decode_add_response(data) == b"ok"


@pytest.mark.parametrize("data", ["0a05ab", "0a", "ff" * 11, "0b", "21", "80"])
def test_malformed_messages(data: str) -> None:
    with pytest.raises(ValueError, match=r"varint|beyond|wire type"):
        decode_add_response(bytes.fromhex(data))


@given(st.binary(max_size=100))
def test_any_octets_are_a_value_error_at_worst(data: bytes) -> None:
    try:
        error = decode_status(data)
    except ValueError:
        return
    assert error is None or isinstance(error, CniError)
