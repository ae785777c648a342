import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import LinkName, parse_link_name
from coil.podnet.host_link import PodAlias, calico_link_name, derive_mac, parse_alias, random_link_name, render_alias


@given(st.binary(min_size=4, max_size=4))
def test_a_random_name_holds_its_entropy_and_is_valid(entropy: bytes) -> None:
    name = random_link_name(entropy)
    assert parse_link_name(name) == name == f"veth{entropy.hex()}"


@pytest.mark.parametrize("entropy", [b"", b"abc", b"abcde"])
def test_a_random_name_takes_four_bytes(entropy: bytes) -> None:
    with pytest.raises(ValueError, match="four random bytes"):
        random_link_name(entropy)


def test_calicos_name() -> None:
    # printf 'kube-system.coredns-5d78c9869d-abcde' | sha1sum
    assert calico_link_name(namespace="kube-system", pod="coredns-5d78c9869d-abcde") == "veth4d5f75c480c"


@given(st.binary(min_size=4, max_size=4))
def test_hardware_addresses_are_local_unicast_and_differ_between_the_ends(entropy: bytes) -> None:
    name = random_link_name(entropy)
    host, pod = derive_mac(name, end="host"), derive_mac(name, end="pod")
    assert host != pod
    for mac in (host, pod):
        octets = bytes.fromhex(mac.replace(":", ""))
        assert len(octets) == 6
        assert octets[0] & 0x03 == 0x02


def test_hardware_addresses_follow_from_the_name() -> None:
    name = LinkName("veth00000001")
    assert derive_mac(name, end="host") == derive_mac(name, end="host") != derive_mac(LinkName("veth2"), end="host")


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
