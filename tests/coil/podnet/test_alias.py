import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.podnet.alias import PodAlias, parse_alias, render_alias

words = st.text(st.sampled_from("abcdef0123456789-."), min_size=1, max_size=60)


@given(st.builds(PodAlias, words | st.just(""), words, words))
def test_what_is_rendered_is_parsed_back(alias: PodAlias) -> None:
    assert parse_alias(render_alias(alias)) == alias


@given(st.text())
def test_any_text_is_an_alias_that_renders_to_itself_or_none(text: str) -> None:
    alias = parse_alias(text)
    if alias is not None and len(text.encode()) <= 255:
        assert render_alias(alias) == text


def test_the_texts_that_other_coils_write() -> None:
    assert render_alias(PodAlias("default", "c0ffee", "eth0")) == "COIL:default:c0ffee:eth0"
    assert parse_alias("COIL::1b2c-uid:eth0") == PodAlias("", "1b2c-uid", "eth0")


@pytest.mark.parametrize(
    "text",
    ["", "COIL", "COIL:", "coil:default:c:eth0", "COIL:default::eth0", "COIL:default:c:", "COIL:p:c:eth0:x", "a"],
)
def test_texts_that_are_not_ours(text: str) -> None:
    assert parse_alias(text) is None


@pytest.mark.parametrize(
    "alias",
    [PodAlias("a:b", "c", "eth0"), PodAlias("p", "", "eth0"), PodAlias("p", "c", ""), PodAlias("p" * 244, "c", "eth0")],
)
def test_aliases_that_could_not_be_read_back(alias: PodAlias) -> None:
    with pytest.raises(ValueError, match="cannot be a link alias"):
        render_alias(alias)


def test_the_longest_alias_fits() -> None:
    assert len(render_alias(PodAlias("p" * 243, "c", "eth0"))) == 255
