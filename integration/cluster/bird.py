"""The routing daemon of a node: takes the blocks that Coil exports to a kernel table and announces them to all others.

Internal BGP, one session for each family and pair of nodes, so that no family depends on the other. Routes that the
others announce go to the node's main table. A full mesh of a known set of nodes converges in a second or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

EXPORT_TABLE = 119  # coild's --export-table-id
_AS = 64512  # the first private one (RFC 6996)


@dataclass(frozen=True, slots=True)
class Speaker:
    """A node as the others see it."""

    name: str
    ipv4: IPv4Address
    ipv6: IPv6Address


def render_bird(own: Speaker, others: Sequence[Speaker], versions: Sequence[int] = (4, 6)) -> str:
    """bird.conf (BIRD 2) of the node ``own`` in a full mesh with ``others``, for these IP versions.

    ``own.ipv4`` is its name among routers, also where it has no such address.
    """
    families = [_render_family(family, own, others) for family in versions]
    return "\n".join([f"router id {own.ipv4};", "log stderr all;", "protocol device { scan time 5; }", *families])


def _render_family(family: int, own: Speaker, others: Sequence[Speaker]) -> str:
    def address(speaker: Speaker) -> IPv4Address | IPv6Address:
        return speaker.ipv4 if family == 4 else speaker.ipv6

    sessions = [
        f"""
protocol bgp {_identifier(other.name)}_{family} {{
  local {address(own)} as {_AS};
  neighbor {address(other)} as {_AS};
  direct;
  connect delay time 1; connect retry time 1; error wait time 1, 2;
  keepalive time 1; hold time 3;
  ipv{family} {{ import all; export where source != RTS_BGP; next hop self; }};
}}"""
        for other in others
    ]
    # BIRD wants one table of its own for each kernel table. The exported blocks point at the loopback device; they
    # are announced, and not installed anywhere else on their own node.
    return f"""
ipv{family} table exported{family};
protocol kernel blocks{family} {{
  kernel table {EXPORT_TABLE};
  learn;
  scan time 2;
  ipv{family} {{ table exported{family}; import all; export none; }};
}}
protocol pipe announced{family} {{
  table master{family};
  peer table exported{family};
  import all;
  export none;
}}
protocol kernel main{family} {{
  scan time 2;
  ipv{family} {{ import none; export where source = RTS_BGP; }};
}}
{"".join(sessions)}
"""


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")
