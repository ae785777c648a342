import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import parse_link_name


@pytest.mark.parametrize("name", ["eth0", "veth0a1b2c3d", "eth0.100", "a", "x" * 15, "-", "cali_1@2"])
def test_names_that_the_kernel_takes(name: str) -> None:
    assert parse_link_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 16, "a/b", "a:1", "a b", "a\n", "\x7f", "ä", "../../all"])
def test_names_that_it_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid link name"):
        parse_link_name(name)


@given(st.text())
def test_a_name_is_always_one_step_of_a_path(text: str) -> None:
    try:
        name = parse_link_name(text)
    except ValueError:
        return
    assert "/" not in name
    assert name not in {"", ".", ".."}
