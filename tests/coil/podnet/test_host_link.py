import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import LinkName, parse_link_name
from coil.podnet.host_link import calico_link_name, derive_mac, random_link_name


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
