"""What one network namespace holds, by pyroute2: the only module of Coil that decodes netlink with it.

A dump that others have changed while it was made (NLM_F_DUMP_INTR, which pyroute2 does not tell of) is made again. Each
socket serves one namespace, that of the thread that opens it, and is closed after it.
"""

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import GenericNetlinkSocket

from coil.page.node_dump import (
    AddressDump,
    ForwardingEntryDump,
    FouPortDump,
    LinkDump,
    NamespaceDump,
    NeighbourDump,
    NextHopDump,
    RouteDump,
    RuleDump,
)
from coil_node_dump.limits import KernelReadError, Limits

ATTEMPTS: Final = 5
"""How often a dump is made that others keep changing."""
_NLM_F_DUMP_INTR: Final = 0x10  # linux/netlink.h
_FAMILIES: Final = (2, 10)
_ANYTHING: Final = {2: "0.0.0.0", 10: "::"}
_SYSCTLS: Final = (
    *("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/rp_filter"),
    *("net/ipv4/conf/default/rp_filter", "net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"),
    *("net/ipv4/conf/default/forwarding", "net/ipv6/conf/default/accept_ra", "net/ipv6/conf/all/accept_ra"),
    *("net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max"),
)
_LINK_FLAGS: Final = {0x1: "UP", 0x2: "BROADCAST", 0x8: "LOOPBACK", 0x10: "POINTOPOINT", 0x10000: "LOWER_UP"}
_SCOPES: Final = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_TYPES: Final = {
    **{1: "unicast", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast", 6: "blackhole", 7: "unreachable"},
    **{8: "prohibit", 9: "throw", 10: "nat"},
}
_ACTIONS: Final = {1: "lookup", 2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
_STATES: Final = {
    **{0x01: "INCOMPLETE", 0x02: "REACHABLE", 0x04: "STALE", 0x08: "DELAY", 0x10: "PROBE", 0x20: "FAILED"},
    **{0x40: "NOARP", 0x80: "PERMANENT"},
}
_PERMANENT: Final = 0x80  # IFA_F_PERMANENT
_NOTHING: Final = 0x80000000
_UNUSABLE: Final = 0x1 | 0x10  # RTNH_F_DEAD, RTNH_F_LINKDOWN
_INVERTED: Final = 0x2  # FIB_RULE_INVERT
_FOU_GET: Final = 3  # FOU_CMD_GET, linux/fou.h


class NamespaceReader:
    """Reads the namespace that the calling thread is in. `note` is told which lists were cut."""

    def __init__(self, limits: Limits, note: Callable[[str], None]) -> None:
        self._limits = limits
        self._note = note

    def read(self, path: str) -> NamespaceDump:
        """`path` is where the namespace is mounted. Raises OSError and KernelReadError."""
        what = path or "node"
        with _kernel_errors(), IPRoute() as socket:

            def dump(name: str, *requests: Callable[[], Iterable[Any]]) -> list[Any]:
                found = [message for request in requests for message in _whole(request, name)]
                if len(found) > self._limits.entries:
                    self._note(f"{what}: {name}")
                return found[: self._limits.entries]

            return NamespaceDump(
                path=path,
                links=tuple(map(_link, dump("links", lambda: socket.link("dump")))),
                addresses=tuple(map(_address, dump("addresses", lambda: socket.addr("dump")))),
                rules=tuple(
                    map(_rule, dump("rules", *_each_family(lambda family: socket.rule("dump", family=family))))
                ),
                routes=tuple(
                    map(_route, dump("routes", *_each_family(lambda family: socket.route("dump", family=family))))
                ),
                neighbours=tuple(
                    map(
                        _neighbour,
                        dump("neighbours", *_each_family(lambda family: socket.neigh("dump", family=family))),
                    )
                ),
                forwarding_entries=tuple(
                    map(_forwarding_entry, dump("forwarding entries", lambda: socket.fdb("dump")))
                ),
                sysctls=dict(_read_sysctls()),
            )


def read_fou_ports() -> tuple[FouPortDump, ...]:
    """The ports of Foo-over-UDP of the calling thread's namespace; none if the kernel does not have it. Raises
    KernelReadError.
    """
    with _kernel_errors(), GenericNetlinkSocket() as socket:
        try:
            socket.bind("fou", _FouMessage)
        except NetlinkError as error:
            if error.code == errno.ENOENT:
                return ()
            raise
        request = _FouMessage()
        request["cmd"], request["version"] = _FOU_GET, 1
        flags = NLM_F_REQUEST | NLM_F_DUMP
        found = _whole(lambda: socket.nlm_request(request, msg_type=socket.prid, msg_flags=flags), "ports")
        return tuple(
            FouPortDump(
                port=message.get_attr("FOU_ATTR_PORT"),
                family=message.get_attr("FOU_ATTR_AF"),
                protocol=message.get_attr("FOU_ATTR_IPPROTO") or 0,
            )
            for message in found
        )


class _FouMessage(genlmsg):  # type: ignore[misc]  # the library has no types
    """linux/fou.h; the library has no codec for it."""

    prefix = "FOU_ATTR_"
    nla_map = (
        ("FOU_ATTR_UNSPEC", "none"),
        ("FOU_ATTR_PORT", "be16"),
        ("FOU_ATTR_AF", "uint8"),
        ("FOU_ATTR_IPPROTO", "uint8"),
        ("FOU_ATTR_TYPE", "uint8"),
        ("FOU_ATTR_REMCSUM_NOPARTIAL", "flag"),
        ("FOU_ATTR_LOCAL_V4", "ip4addr"),
        ("FOU_ATTR_LOCAL_V6", "ip6addr"),
        ("FOU_ATTR_PEER_V4", "ip4addr"),
        ("FOU_ATTR_PEER_V6", "ip6addr"),
        ("FOU_ATTR_PEER_PORT", "be16"),
        ("FOU_ATTR_IFINDEX", "int32"),
    )


@contextmanager
def _kernel_errors() -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        raise KernelReadError(str(error)) from error


def _each_family(request: Callable[[int], Iterable[Any]]) -> Iterator[Callable[[], Iterable[Any]]]:
    for family in _FAMILIES:
        yield lambda family=family: request(family)  # type: ignore[misc]  # its own family, not the last


def _whole(request: Callable[[], Iterable[Any]], name: str) -> list[Any]:
    """A dump that nobody has changed meanwhile. Read to its end: what is left would stay in the socket's queue."""
    for _ in range(ATTEMPTS):
        found = list(request())
        if not any(message["header"]["flags"] & _NLM_F_DUMP_INTR for message in found):
            return found
    raise KernelReadError(f"{name}: changed each of {ATTEMPTS} times while they were read")


def _read_sysctls() -> Iterator[tuple[str, str]]:
    for path in _SYSCTLS:
        try:
            yield path, Path("/proc/sys", path).read_text().strip()
        except OSError:
            continue  # the kernel does not have it, or not for this namespace


def _link(message: Any) -> LinkDump:
    information = message.get_attr("IFLA_LINKINFO")
    data = None if information is None else information.get_attr("IFLA_INFO_DATA")
    return LinkDump(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        kind="" if information is None else information.get_attr("IFLA_INFO_KIND") or "",
        mac=message.get_attr("IFLA_ADDRESS") or "",
        mtu=message.get_attr("IFLA_MTU") or 0,
        flags=tuple(name for bit, name in _LINK_FLAGS.items() if message["flags"] & bit),
        state=message.get_attr("IFLA_OPERSTATE") or "",
        link=message.get_attr("IFLA_LINK"),
        peer_namespace=message.get_attr("IFLA_LINK_NETNSID"),
        master=message.get_attr("IFLA_MASTER"),
        alias=message.get_attr("IFLA_IFALIAS") or "",
        info=dict(_plain(data)),
    )


def _plain(data: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a link's kind that are numbers or texts."""
    for name, value in () if data is None or not hasattr(data, "get") else data.get("attrs", ()):
        if isinstance(value, int | str):
            yield name, value


def _address(message: Any) -> AddressDump:
    # Of a link with two ends IFA_ADDRESS is that of the other one.
    address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    flags = message.get_attr("IFA_FLAGS")
    return AddressDump(
        link=message["index"],
        address=f"{address}/{message['prefixlen']}",
        scope=_SCOPES.get(message["scope"], str(message["scope"])),
        permanent=bool((message["flags"] if flags is None else flags) & _PERMANENT),
    )


_RULE_FIELDS: Final = frozenset(
    {
        *("FRA_TABLE", "FRA_PRIORITY", "FRA_SRC", "FRA_DST", "FRA_FWMARK", "FRA_FWMASK", "FRA_IIFNAME", "FRA_OIFNAME"),
        *("FRA_GOTO", "FRA_PROTOCOL", "FRA_SUPPRESS_PREFIXLEN"),
    }
)


def _rule(message: Any) -> RuleDump:
    family = message["family"]
    return RuleDump(
        family=family,
        priority=message.get_attr("FRA_PRIORITY") or 0,
        action=_ACTIONS.get(message["action"], str(message["action"])),
        table=message.get_attr("FRA_TABLE") or message["table"],
        source=_network(family, message.get_attr("FRA_SRC"), message["src_len"]),
        destination=_network(family, message.get_attr("FRA_DST"), message["dst_len"]),
        mark=message.get_attr("FRA_FWMARK"),
        mask=message.get_attr("FRA_FWMASK"),
        input_link=message.get_attr("FRA_IIFNAME") or "",
        output_link=message.get_attr("FRA_OIFNAME") or "",
        goto=message.get_attr("FRA_GOTO"),
        protocol=message.get_attr("FRA_PROTOCOL") or 0,
        inverted=bool(message["flags"] & _INVERTED),
        suppress=_suppressed(message.get_attr("FRA_SUPPRESS_PREFIXLEN")),
        others=tuple(
            sorted({name for name, _ in message["attrs"]} - _RULE_FIELDS | ({"FRA_TOS"} if message["tos"] else set()))
        ),
    )


def _suppressed(length: int | None) -> int | None:
    """The kernel says −1 for a rule that suppresses nothing."""
    return None if length is None or length >= _NOTHING else length


def _network(family: int, address: str | None, length: int) -> str:
    return "" if address is None and not length else f"{address or _ANYTHING[family]}/{length}"


def _route(message: Any) -> RouteDump:
    family = message["family"]
    metrics = message.get_attr("RTA_METRICS")
    hops = message.get_attr("RTA_MULTIPATH") or [message]
    return RouteDump(
        family=family,
        table=message.get_attr("RTA_TABLE") or message["table"],
        destination=f"{message.get_attr('RTA_DST') or _ANYTHING[family]}/{message['dst_len']}",
        type=_TYPES.get(message["type"], str(message["type"])),
        protocol=message["proto"],
        scope=message["scope"],
        metric=message.get_attr("RTA_PRIORITY") or 0,
        source=message.get_attr("RTA_PREFSRC") or "",
        mtu=None if metrics is None else metrics.get_attr("RTAX_MTU"),
        hops=tuple(hop for hop in map(_hop, hops) if hop.link is not None or hop.gateway),
    )


def _hop(message: Any) -> NextHopDump:
    via = message.get_attr("RTA_VIA")
    gateway = message.get_attr("RTA_GATEWAY") or ("" if via is None else via["addr"])
    # A next hop of several has its link in its own header.
    link = message.get("oif") if "oif" in message else message.get_attr("RTA_OIF")
    return NextHopDump(link=link, gateway=gateway, dead=bool(message.get("flags", 0) & _UNUSABLE))


def _neighbour(message: Any) -> NeighbourDump:
    return NeighbourDump(
        link=message["ifindex"],
        address=message.get_attr("NDA_DST") or "",
        mac=message.get_attr("NDA_LLADDR") or "",
        state=_STATES.get(message["state"], str(message["state"])),
    )


def _forwarding_entry(message: Any) -> ForwardingEntryDump:
    return ForwardingEntryDump(
        link=message["ifindex"],
        mac=message.get_attr("NDA_LLADDR") or "",
        destination=message.get_attr("NDA_DST") or "",
        master=message.get_attr("NDA_MASTER"),
        state=_STATES.get(message["state"], str(message["state"])),
    )
