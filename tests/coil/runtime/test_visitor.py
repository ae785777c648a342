"""Who is welcome: those who call this machine by its own names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.runtime.visitor import is_welcome


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:9383",
        "LOCALHOST:8080",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:9383",
        "127.1.2.3:1",
        "[::1]",
        "[::1]:9383",
        "[0:0:0:0:0:0:0:1]:9383",
    ],
)
def test_the_machines_own_names(host: str) -> None:
    assert is_welcome(host, bound="127.0.0.1", arrived="127.0.0.1")


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":9383",
        "example.com",
        "example.com:9383",
        "localhost.example.com",
        "127.0.0.1.example.com",
        "10.0.0.1",
        "[fd00::1]:9383",
        "2130706433",
        "0x7f000001",
        "127.1",
        "localhost@example.com",
        "[::1",
        "[::1]example.com",
    ],
)
def test_anybody_elses(host: str) -> None:
    assert not is_welcome(host, bound="127.0.0.1", arrived="127.0.0.1")


def test_the_address_that_it_listens_on() -> None:
    assert is_welcome("10.0.0.7:9383", bound="10.0.0.7", arrived="10.0.0.7")
    assert is_welcome("10.0.0.7:9383", bound="0.0.0.0", arrived="10.0.0.7")
    assert is_welcome("[fd00:0::7]:9383", bound="::", arrived="fd00::7")
    assert is_welcome("Node1.Example:9383", bound="node1.example", arrived="10.0.0.7")
    assert not is_welcome("10.0.0.8", bound="0.0.0.0", arrived="10.0.0.7")
    assert not is_welcome("0.0.0.0", bound="127.0.0.1", arrived="127.0.0.1")


@given(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{2,8}){1,2}", fullmatch=True), st.integers(1, 65535))
def test_no_name_of_a_site_is_welcome(site: str, port: int) -> None:
    assert not is_welcome(f"{site}:{port}", bound="127.0.0.1", arrived="127.0.0.1")
