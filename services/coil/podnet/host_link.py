"""The host end of a pod's veth: its name and the hardware addresses of both ends."""

from hashlib import sha1, sha256

from coil.kernel.link import LinkName, MacAddress

PREFIX = "veth"


def random_link_name(entropy: bytes) -> LinkName:
    """`veth` and 8 hexadecimal digits, made of exactly four random bytes."""
    if len(entropy) != 4:
        raise ValueError("a host link name takes four random bytes")
    return LinkName(PREFIX + entropy.hex())


def calico_link_name(*, namespace: str, pod: str) -> LinkName:
    """The name that Calico gives the pod's host link (when told to use the prefix `veth`): tools that look
    for it find it.

    `veth` and the first 11 hexadecimal digits of sha1("<namespace>.<pod>").
    """
    # Not for security: the digest is the format.
    digest = sha1(f"{namespace}.{pod}".encode(), usedforsecurity=False).hexdigest()
    return LinkName(PREFIX + digest[:11])


def derive_mac(host_link: LinkName, *, end: str) -> MacAddress:
    """A locally administered unicast address that follows from the host link's name and the name of the
    `end`.

    The addresses are set by us, not drawn by the kernel, for two reasons: the neighbour entries can be part
    of the plan, and systemd-udevd (MACAddressPolicy=persistent) rewrites drawn addresses of new links, which
    would break those entries.
    """
    octets = bytearray(sha256(f"{host_link}/{end}".encode()).digest()[:6])
    octets[0] = octets[0] & 0xFC | 0x02
    return MacAddress(":".join(f"{octet:02x}" for octet in octets))
