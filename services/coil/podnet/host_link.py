"""The host end of a pod's veth: its name, the hardware addresses of both ends, and its alias.

The alias is the record by which coild recognises its pods after a crash: `COIL:<pool>:<container ID>:<interface>` for a
pod with addresses from a pool, `COIL::<pod UID>:<interface>` behind another plugin. Invariant: what `render_alias`
writes, `parse_alias` reads back unchanged.
"""

from dataclasses import dataclass
from hashlib import sha1

from coil.kernel.link import LinkName, MacAddress, derived_mac

MARK = "COIL"
MAX_LENGTH = 255
"""IFALIASZ of linux/if.h, without its final zero."""


@dataclass(frozen=True, slots=True)
class PodAlias:
    """Which attachment a host link belongs to.

    `tag` says where its addresses come from: the name of a pool; "" for another plugin, and `container_id` is then
    the pod's UID. Other sources choose tags that cannot be names of pools.
    """

    tag: str
    container_id: str
    ifname: str


def render_alias(alias: PodAlias) -> str:
    """The text for the kernel. Raises ValueError if it would not be read back as the same alias."""
    text = f"{MARK}:{alias.tag}:{alias.container_id}:{alias.ifname}"
    if len(text.encode()) > MAX_LENGTH or parse_alias(text) != alias:
        raise ValueError(f"cannot be a link alias: {text!r}")
    return text


def parse_alias(text: str) -> PodAlias | None:
    """The attachment named by a link's alias, or None where the alias is not one of ours."""
    parts = text.split(":")
    if len(parts) != 4 or parts[0] != MARK or not parts[2] or not parts[3]:
        return None
    return PodAlias(*parts[1:])


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
    return derived_mac(f"{host_link}/{end}")
