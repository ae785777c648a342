"""Every kind of bad input: its CNI error code, and that coild never hears of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil_cni.error import (
    DECODING_FAILURE,
    INCOMPATIBLE_CNI_VERSION,
    INVALID_ENVIRONMENT,
    INVALID_NETWORK_CONFIG,
    IO_FAILURE,
    NOT_AVAILABLE,
    TRY_AGAIN_LATER,
)
from coil_cni.invocation import SUPPORTED
from tests.coil_cni.edges import ENVIRON, NETCONF, POD_ARGS, run_plugin

CONF = json.dumps(NETCONF).encode()


def without(*names: str, **changed: str) -> dict[str, str]:
    return {name: value for name, value in (ENVIRON | changed).items() if name not in names}


def conf(**changed: object) -> bytes:
    return json.dumps(NETCONF | changed).encode()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        without("CNI_COMMAND"),
        ENVIRON | {"CNI_COMMAND": ""},
        ENVIRON | {"CNI_COMMAND": "add"},
        ENVIRON | {"CNI_COMMAND": "gc"},
        ENVIRON | {"CNI_COMMAND": "STATUS "},
        without("CNI_CONTAINERID"),
        without("CNI_NETNS"),
        without("CNI_IFNAME"),
        ENVIRON | {"CNI_NETNS": ""},
        without("CNI_NETNS", CNI_COMMAND="CHECK"),
        without("CNI_IFNAME", CNI_COMMAND="CHECK"),
        without("CNI_CONTAINERID", CNI_COMMAND="DEL"),
        without("CNI_IFNAME", CNI_COMMAND="DEL"),
        ENVIRON | {"CNI_CONTAINERID": "-abc"},
        ENVIRON | {"CNI_CONTAINERID": "a/b"},
        ENVIRON | {"CNI_CONTAINERID": "a b"},
        ENVIRON | {"CNI_CONTAINERID": "ä"},
        ENVIRON | {"CNI_CONTAINERID": "a\n"},
        ENVIRON | {"CNI_IFNAME": "a234567890123456"},
        ENVIRON | {"CNI_IFNAME": "ääääääää"},
        ENVIRON | {"CNI_IFNAME": "."},
        ENVIRON | {"CNI_IFNAME": ".."},
        ENVIRON | {"CNI_IFNAME": "eth0:1"},
        ENVIRON | {"CNI_IFNAME": "a/b"},
        ENVIRON | {"CNI_IFNAME": "eth 0"},
        ENVIRON | {"CNI_IFNAME": "eth0\t"},
        without("CNI_ARGS"),
        ENVIRON | {"CNI_ARGS": ""},
        ENVIRON | {"CNI_ARGS": "IgnoreUnknown=1"},
        ENVIRON | {"CNI_ARGS": "K8S_POD_NAMESPACE=a"},
        ENVIRON | {"CNI_ARGS": "K8S_POD_NAME=a"},
        ENVIRON | {"CNI_ARGS": "K8S_POD_NAMESPACE=;K8S_POD_NAME=a"},
        ENVIRON | {"CNI_ARGS": f"{POD_ARGS};"},
        ENVIRON | {"CNI_ARGS": f"{POD_ARGS};A"},
        ENVIRON | {"CNI_ARGS": f"{POD_ARGS};A=b=c"},
        ENVIRON | {"CNI_ARGS": "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;A=b"},
        ENVIRON | {"CNI_ARGS": "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;A=b;IgnoreUnknown=0"},
        ENVIRON | {"CNI_ARGS": "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;IgnoreUnknown=perhaps"},
        ENVIRON | {"CNI_ARGS": "A", "CNI_COMMAND": "DEL"},
    ],
    ids=str,
)
def test_environment(environ: dict[str, str]) -> None:
    outcome = run_plugin(environ, CONF)
    assert (outcome.code, outcome.connected) == (INVALID_ENVIRONMENT, 0)


@pytest.mark.parametrize("name", ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"])
def test_environment_that_is_not_text(name: str) -> None:
    environ = {key.encode(): value.encode() for key, value in ENVIRON.items()} | {name.encode(): b"\xff\xfe"}
    outcome = run_plugin(environ, CONF)
    assert (outcome.code, outcome.connected) == (INVALID_ENVIRONMENT, 0)
    assert name in outcome.document["msg"]


@pytest.mark.parametrize(
    ("stdin", "code"),
    [
        (b"", DECODING_FAILURE),
        (b"{", DECODING_FAILURE),
        (b"[]", DECODING_FAILURE),
        (b"null", DECODING_FAILURE),
        (b'"text"', DECODING_FAILURE),
        (CONF + b"{}", DECODING_FAILURE),
        (b"\xef\xbb\xbf" + CONF, DECODING_FAILURE),
        (CONF.replace(b"coil", b"\xff"), DECODING_FAILURE),
        (b"[" * 100_000, DECODING_FAILURE),
        (conf(cniVersion=1), DECODING_FAILURE),
        (conf(cniVersion="0.5.0"), INCOMPATIBLE_CNI_VERSION),
        (conf(cniVersion="1.2.0"), INCOMPATIBLE_CNI_VERSION),
        (conf(cniVersion="new"), INCOMPATIBLE_CNI_VERSION),
        (conf(name=""), INVALID_NETWORK_CONFIG),
        (conf(name=None), INVALID_NETWORK_CONFIG),
        (conf(name="a b"), INVALID_NETWORK_CONFIG),
        (conf(name="_a"), INVALID_NETWORK_CONFIG),
        (conf(name=5), DECODING_FAILURE),
        (conf(name="a\ud800"), DECODING_FAILURE),
        (conf(socket=5), DECODING_FAILURE),
        (conf(socket="run/coild.sock"), INVALID_NETWORK_CONFIG),
        (conf(socket="/run/\0.sock"), INVALID_NETWORK_CONFIG),
        (conf(socket="/" + "x" * 107), INVALID_NETWORK_CONFIG),
        (conf(socket="/" + "ä" * 54), INVALID_NETWORK_CONFIG),
        (conf(prevResult=[]), DECODING_FAILURE),
        (conf(prevResult={"ips": {}}), DECODING_FAILURE),
        (conf(prevResult={"ips": ["10.0.0.1"]}), DECODING_FAILURE),
        (conf(prevResult={"ips": [{"address": 4}]}), DECODING_FAILURE),
        (conf(prevResult={"interfaces": [{"name": "a\udfff"}]}), DECODING_FAILURE),
        (conf(prevResult={"interfaces": [{"sandbox": True}]}), DECODING_FAILURE),
        (conf(prevResult={"dns": 7}).replace(b"7", b"1e999"), DECODING_FAILURE),
        (OSError(5, "Input/output error"), IO_FAILURE),
        (TimeoutError("no end"), IO_FAILURE),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_standard_input(stdin: bytes | OSError, code: int) -> None:
    for command in ("ADD", "DEL", "CHECK"):
        outcome = run_plugin(ENVIRON | {"CNI_COMMAND": command}, stdin)
        assert (outcome.code, outcome.connected) == (code, 0)


@pytest.mark.parametrize(
    ("command", "version"), [("CHECK", "0.3.1"), ("CHECK", "0.1.0"), ("GC", "1.0.0"), ("STATUS", "1.0.0")]
)
def test_a_command_that_came_later_than_the_version(command: str, version: str) -> None:
    outcome = run_plugin(ENVIRON | {"CNI_COMMAND": command}, conf(cniVersion=version))
    assert (outcome.code, outcome.connected) == (INCOMPATIBLE_CNI_VERSION, 0)
    assert outcome.document["cniVersion"] == version


@pytest.mark.parametrize("text", [conf(cniVersion=None), conf(cniVersion=""), b'{"name":"a","type":"coil"}'])
def test_a_configuration_without_a_version_is_of_the_first(text: bytes) -> None:
    assert run_plugin(ENVIRON | {"CNI_COMMAND": "CHECK"}, text).code == INCOMPATIBLE_CNI_VERSION


@pytest.mark.parametrize(
    ("attachments", "code"),
    [
        (None, INVALID_NETWORK_CONFIG),
        ({}, DECODING_FAILURE),
        (["a"], DECODING_FAILURE),
        ([{"containerID": "a"}], DECODING_FAILURE),
        ([{"containerID": "a", "ifname": 5}], DECODING_FAILURE),
    ],
)
def test_a_gc_that_does_not_say_what_stays(attachments: object, code: int) -> None:
    stdin = conf(cniVersion="1.1.0", **{"cni.dev/valid-attachments": attachments})
    outcome = run_plugin({"CNI_COMMAND": "GC"}, stdin)
    assert (outcome.code, outcome.connected) == (code, 0)


def test_status_while_coild_is_away() -> None:
    stdin = conf(cniVersion="1.1.0", socket="/nowhere/coild.sock")
    assert run_plugin({"CNI_COMMAND": "STATUS"}, stdin).code == NOT_AVAILABLE


@pytest.mark.parametrize("path", ["/nowhere/coild.sock", __file__])
def test_coild_away(path: str) -> None:
    outcome = run_plugin(ENVIRON, conf(socket=path, cniVersion="0.4.0"))
    assert outcome.code == TRY_AGAIN_LATER
    assert (outcome.connected, outcome.document["cniVersion"]) == (1, "0.4.0")
    assert path in outcome.document["msg"]


def test_a_socket_path_that_cannot_be_is_an_input_output_failure() -> None:
    assert run_plugin(ENVIRON, conf(socket=f"{__file__}/coild.sock")).code == IO_FAILURE


words = st.sampled_from(
    [
        "",
        "ADD",
        "DEL",
        "CHECK",
        "GC",
        "STATUS",
        "VERSION",
        "a",
        "eth0",
        "/run/netns/a",
        POD_ARGS,
        "K8S_POD_NAME=x",
        ";=",
    ]
)
variables = st.dictionaries(
    st.sampled_from([name.encode() for name in ENVIRON]),
    words.map(str.encode) | st.binary(max_size=20).filter(lambda value: b"\0" not in value),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([*SUPPORTED, "/x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ips", "interfaces", "address", "name", "sandbox", "dns"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
configurations = st.dictionaries(
    st.sampled_from(["cniVersion", "name", "socket", "prevResult", "type", "cni.dev/valid-attachments"]), json_values
)
nowhere = st.just({"socket": "/nowhere/coild.sock"})


@given(variables, st.binary(max_size=40) | st.builds(lambda a, b: json.dumps(a | b).encode(), configurations, nowhere))
def test_any_input_gives_a_cni_document(environ: dict[bytes, bytes], stdin: bytes) -> None:
    outcome = run_plugin(environ, stdin)
    if outcome.status == 0:
        assert environ[b"CNI_COMMAND"] == b"VERSION"
        assert outcome.document["supportedVersions"] == [*SUPPORTED]
    else:
        assert outcome.code in (1, 4, 6, 7, TRY_AGAIN_LATER, NOT_AVAILABLE)
        assert outcome.connected == (outcome.code in (TRY_AGAIN_LATER, NOT_AVAILABLE))


@given(configurations)
def test_any_configuration_on_a_good_environment(configuration: dict[str, object]) -> None:
    stdin = json.dumps(NETCONF | configuration | {"socket": "/nowhere/coild.sock"}).encode()
    outcome = run_plugin(ENVIRON, stdin)
    assert outcome.code in (1, 6, 7, TRY_AGAIN_LATER)
    assert outcome.connected == (outcome.code == TRY_AGAIN_LATER)
