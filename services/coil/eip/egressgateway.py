"""What egressgateway 0.6 (the Go programs) leaves on a node, and how it is told from everything else.

Its agent removes nothing when it stops: a link, policy routing rules with their tables, rules and chains of iptables,
and IP sets stay until the node restarts. Names of links, numbers of tables and the first byte of marks can be
configured there, and the configuration is gone when its Helm release is; so each object is recognised by what cannot be
configured, wherever there is something. Not undone: `rp_filter` of all links, whose former value nobody knows, and the
marks of connections, which nothing asks for any more.
"""

import re
from collections.abc import Collection, Iterable
from hashlib import sha1
from typing import Final

from coil.crd.names import NodeName
from coil.kernel.iptables import IptablesClaim
from coil.kernel.link import Link, LinkName, MacAddress
from coil.kernel.mark import MARK_PROTOCOL, NODE_MARK, NODE_MARK_MASK
from coil.kernel.rule import WHOLE_MARK, Rule
from coil.kernel.vxlan import VxlanState

AGENT_LABELS: Final = "app.kubernetes.io/name=egressgateway,app.kubernetes.io/component=egressgateway-agent"
"""Of the pods of its agent: a label selector."""

IPTABLES: Final = IptablesClaim(
    owner="egressgateway",
    comment=re.compile(r"egw:[A-Za-z0-9_-]{16}"),
    chains={
        "mangle": frozenset({"EGRESSGATEWAY-MARK-REQUEST", "EGRESSGATEWAY-REPLY-ROUTING"}),
        "nat": frozenset({"EGRESSGATEWAY-SNAT-EIP"}),
    },
    grep="-e egw: -e EGRESSGATEWAY-",
)
"""Each of its rules has a hash for a comment, beside one in words."""

_SET: Final = re.compile(r"egress-(cluster-cidr-ipv[46]|(src|dst)-v[46]-[0-9a-f]{17})")
_SET_KIND: Final = "hash:net"

_LINK: Final = LinkName("egress.vxlan")
_VNI: Final = 100
_PORT: Final = 7789

_PRIORITY: Final = 99
_REPLY_MARK: Final = 39
REPLY_TABLE: Final = 600


def owns_set(name: str, kind: str) -> bool:
    """Whether an IP set is its."""
    return kind == _SET_KIND and _SET.fullmatch(name) is not None


def tunnel_mac(node: NodeName) -> MacAddress:
    """The hardware address of its tunnel's link on the node."""
    octets = bytes((0x66, *sha1(f"{node}egress".encode(), usedforsecurity=False).digest()[:5]))
    return MacAddress(octets.hex(":"))


def owns_link(link: Link, state: VxlanState, node: NodeName) -> bool:
    """Whether a VXLAN link is its tunnel: bound to another link, as Coil's never is, not learning, and with the
    hardware address that follows from the node's name, or with all values of its chart.
    """
    by_default = link.name == _LINK and (state.vni, state.port) == (_VNI, _PORT)
    return state.bound and not state.learning and (link.mac == tunnel_mac(node) or by_default)


def select_rules(rules: Iterable[Rule], tables: Collection[int]) -> list[Rule]:
    """Those of the rules that are its: one for each of its nodes, which leads to the table with the number of the mark,
    and in releases before 0.6 one for replies. All compare the whole mark and nothing else.

    `tables` are those with routes over its tunnel; REPLY_TABLE is among them only if it has no others beside.
    """
    return [rule for rule in rules if _is_plain(rule) and (_is_nodes(rule, tables) or _is_replies(rule, tables))]


def _is_plain(rule: Rule) -> bool:
    others = rule.source, rule.destination, rule.iif, rule.goto
    return others == (None, None, None, None) and rule.mask == WHOLE_MARK and rule.protocol != MARK_PROTOCOL


def _is_nodes(rule: Rule, tables: Collection[int]) -> bool:
    if rule.mark is None or rule.mark != rule.table:
        return False
    # Before 0.6 the priority was whatever the kernel chose.
    by_default = rule.mark & NODE_MARK_MASK == NODE_MARK and rule.mark != NODE_MARK
    return by_default or (rule.priority == _PRIORITY and rule.table in tables)


def _is_replies(rule: Rule, tables: Collection[int]) -> bool:
    return (rule.mark, rule.table) == (_REPLY_MARK, REPLY_TABLE) and REPLY_TABLE in tables
