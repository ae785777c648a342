"""The codec reads what betterproto writes, and refuses what is no request."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from coil.cnirpc.codec import CniCodec
from coil.cnirpc.messages import AddResponse, CniArgs

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20
)  # betterproto leaves out an empty one
requests = st.builds(
    CniArgs,
    container_id=words,
    netns=words,
    ifname=words,
    args=st.dictionaries(names, words, max_size=4),
    path=words,
    stdin_data=st.binary(max_size=60),
    ips=st.lists(words, max_size=3),
    interfaces=st.dictionaries(names, st.booleans(), max_size=3),
)


@given(requests)
def test_a_request_is_read_as_betterproto_wrote_it(request: CniArgs) -> None:
    read = CniCodec().decode(bytes(request), CniArgs)
    assert type(read) is CniArgs
    assert read.to_dict() == request.to_dict()


def test_a_field_that_is_not_known_is_passed_over() -> None:
    assert CniCodec().decode(bytes(CniArgs(ifname="eth0")) + b"\xfa\x7f\x01x", CniArgs).ifname == "eth0"


@pytest.mark.parametrize(
    "data", [b"\x0a\x05ab", b"\x0a\x01\xff", b"\x0b", b"\xff"], ids=["cut", "text", "group", "tag"]
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        CniCodec().decode(data, CniArgs)


def test_an_answer_is_what_betterproto_makes_of_it() -> None:
    answer = AddResponse(result=b"{}")
    assert CniCodec().encode(answer, AddResponse) == bytes(answer)
