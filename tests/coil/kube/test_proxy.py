"""Which proxy the environment has for a server. kubectl is asked the same in integration/apiserver/test_reaching.py."""

import pytest

from coil.kube.proxy import ProxyError, find_proxy

SERVER, SERVER6, NAMED = "https://192.0.2.10:6443", "https://[2001:db8::10]:6443", "https://api.example:6443"
HTTPS = {"HTTPS_PROXY": "http://192.0.2.20:3128"}
PROXY = HTTPS["HTTPS_PROXY"]


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        (SERVER, {}, None),
        (SERVER, HTTPS, PROXY),
        (SERVER, {"https_proxy": PROXY}, PROXY),
        (SERVER, {"HTTPS_PROXY": "192.0.2.20:3128"}, PROXY),
        (SERVER, {"HTTPS_PROXY": "proxy.example:3128"}, "http://proxy.example:3128"),
        (SERVER, {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, None),
        ("http://192.0.2.10:8080", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://localhost:6443", HTTPS, None),
        ("https://127.8.9.1:6443", HTTPS, None),
        ("https://[::1]:6443", HTTPS, None),
        ("https://[::ffff:127.0.0.1]:6443", HTTPS, None),
    ],
)
def test_by_scheme_and_place(server: str, environ: dict[str, str], proxy: str | None) -> None:
    assert find_proxy(server, environ) == proxy


@pytest.mark.parametrize(
    ("server", "entries", "bypassed"),
    [
        (SERVER, "*", True),
        (SERVER, "10.0.0.0/8, 192.0.2.0/24", True),
        (SERVER, "192.0.2.10:6443", True),
        (SERVER, "192.0.2.10:443", False),
        (SERVER, "192.0.2.0/29", False),
        (SERVER, ".2.10", False),
        (SERVER, "::/0", False),
        (SERVER, "192.0.2.0/255.255.255.0", False),
        ("https://192.0.2.10", "192.0.2.10:443", True),
        (SERVER6, "2001:db8::10", True),
        (SERVER6, "2001:db8::/32", True),
        (SERVER6, "[2001:db8::10]:6443", True),
        (SERVER6, "[2001:db8::10]", False),
        (SERVER6, "0.0.0.0/0", False),
        (NAMED, "example", True),
        (NAMED, "*.example", True),
        (NAMED, "API.example", True),
        (NAMED, ".api.example", False),
        (NAMED, "pi.example", False),
        (NAMED, "0.0.0.0/0", False),
        (NAMED, ",,:6443", False),
    ],
)
def test_what_is_reached_without_one(server: str, entries: str, bypassed: bool) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        assert (find_proxy(server, {**HTTPS, name: entries}) is None) is bypassed


@pytest.mark.parametrize("text", ["socks5://192.0.2.20:1080", "ftp://192.0.2.20", "http://", "https:///x"])
def test_one_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ProxyError, match="is not supported: use one of HTTP or HTTPS"):
        find_proxy(SERVER, {"HTTPS_PROXY": text})
