"""What the links of a node's interfaces need of the kernel's settings, in the namespace that the calling thread is in.

A strict reverse path filter (`rp_filter` 1) drops a packet, without a trace but in `log_martians`, unless its answer
would leave by the link that it came in by. The kernel looks that up when addresses of Services are translated already:
a question to a NodePort of one interface, whose pod has its address of another, would be dropped, and so would be the
answers to what that pod sends translated. So the filter is made loose (2): there has to be a way to the source. What an
interface may send, EC2 checks. A filter that is off stays off.
"""

from typing import Final

from coil.kernel.link import LinkName, Sysctl
from coil.netlink.sysctl import ensure_sysctls, read_sysctl

STRICT: Final = "1"
LOOSE: Final = "2"
"""Of rp_filter (Linux' Documentation/networking/ip-sysctl.rst); the greater of the link's and of all links' counts."""
_ALL_LINKS: Final = "net/ipv4/conf/all/rp_filter"
_ACCEPT, _ACCEPT_FORWARDING = "1", "2"
"""Of accept_ra."""


def loosen_path_filter(link: LinkName) -> tuple[Sysctl, ...]:
    """Make the reverse path filter of the link loose if it is strict; returns what was written. Idempotent.

    A link that is gone has none. Raises NetlinkError that names the file where it cannot be written.
    """
    path = f"net/ipv4/conf/{link}/rp_filter"
    own = read_sysctl(path)
    if own is None or max(own, read_sysctl(_ALL_LINKS) or "") != STRICT:
        return ()
    wanted = (Sysctl(path, LOOSE),)
    ensure_sysctls(wanted)
    return wanted


def keep_advertised_routes(link: LinkName) -> tuple[Sysctl, ...]:
    """Have the link take default routes of the subnet's router although the kernel forwards; returns what was written.

    Idempotent. Raises as `loosen_path_filter`.
    """
    path = f"net/ipv6/conf/{link}/accept_ra"
    if read_sysctl(path) != _ACCEPT:
        return ()
    wanted = (Sysctl(path, _ACCEPT_FORWARDING),)
    ensure_sysctls(wanted)
    return wanted
