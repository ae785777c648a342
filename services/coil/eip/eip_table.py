"""The nftables tables of the data plane: rules that are the same whatever policies, pods and nodes there are.

Place in the flow: `coil.eip.data_plane` says what is in the sets and maps of these tables.

A packet of a pod, on its way out, at prerouting: its source gives its class (`class`, else `subnet_class`), class and
destination give the policy that decides (`choice`, else `default_choice` beyond `cluster`), and that gives its way
(`way`), a mark: a node's, which leads into the tunnel; `HERE`; or `CLOSED`, the end. Without one it goes on as if there
were no policy. What comes out of the tunnel goes through the same lookups, and may have no other way than `HERE`. Out
of a gateway, the policy of what is `HERE`, looked up in the same manner, gives its source address (`eip`, `node_ip`).
Back: a connection that came through the tunnel bears the mark of the node that it came from, which leads the replies
there.

Class and policy are numbers that have to be held between two lookups. The packet's traffic class holds them: forwarding
sets that anew (IPv4), and nobody else asks for it before; it is zero again after the lookups.

Anybody can send to the tunnel's port what looks like a tunnel's: it is taken from addresses of nodes only (`mesh`).

Looked at after DNAT, so that both nodes see one destination: a Service is what stands behind it, and kube-proxy's marks
are not written into ours. Fails closed, everywhere: what has a node's mark leaves by the tunnel or not at all, and what
is `HERE` leaves with an address of this node or not at all, whatever happened to a connection's translation.

While no renewal of the node's lease was acknowledged (`alive` has run out), nothing goes out with a floating address,
and nobody is told where it is: neither ARP nor neighbour discovery answer for `eips`.
"""

from dataclasses import dataclass
from typing import Final

from coil.eip.eip_set import (
    ALIVE,
    ANY_NODE,
    ARP_ALIVE,
    ARP_EIPS,
    BITS,
    CLOSED,
    CURRENT,
    FORWARDED,
    HERE,
    NODE_IPS,
    NODES,
    POD_TIMEOUTS,
    PROBE_MARK,
    SETS,
    SOLICITED,
    TABLE,
    TIMEOUTS,
    UNKNOWN,
    WAYS,
    arp_sets,
    packet_sets,
)
from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.nft_element import SetName
from coil.kernel.nft_table import (
    DESTINATION,
    SOURCE,
    Assign,
    ChainType,
    ClampSegments,
    Comparison,
    Count,
    Field,
    Goto,
    Hook,
    Jump,
    Key,
    LeadingBits,
    Lookup,
    Match,
    Member,
    NftChain,
    NftTable,
    NoTrack,
    Priority,
    RegularChain,
    Rule,
    SourceNat,
    TableFamily,
    Verdict,
)

__all__ = [
    "CLOSED",
    "HERE",
    "POD_TIMEOUTS",
    "SETS",
    "TABLE",
    "TIMEOUTS",
    "EipTableOptions",
    "forward_shim",
    "plan_eip_tables",
]

DROPPED_CLOSED: Final = "dropped_closed"
"""No node could carry it, or there was no way to the node."""
DROPPED_FENCED: Final = "dropped_fenced"
"""The node's lease was not renewed."""
DROPPED_FOREIGN: Final = "dropped_foreign"
"""Came to the tunnel's port, and not from a node."""
DROPPED_STRAY: Final = "dropped_stray"
"""Came through the tunnel, or from outside to a floating address, and this node does not carry it (any more)."""
DROPPED_UNTRANSLATED: Final = "dropped_untranslated"
"""Would have left this node with a source that is not the node's."""


_TUNNEL: Final = LinkName("egress.vxlan")
TUNNEL_PORT: Final = 7789
"""By default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EipTableOptions:
    """`port` is the tunnel's. `keep_source`: what goes into the tunnel is not masqueraded by other tables, as those of
    Weave and others do.
    """

    tunnel: LinkName = _TUNNEL
    port: int = TUNNEL_PORT
    keep_source: bool = True


def plan_eip_tables(options: EipTableOptions) -> tuple[NftTable, NftTable]:
    """The table of packets, and the one of ARP."""
    return _packet_table(options), _arp_table()


def forward_shim(options: EipTableOptions) -> tuple[tuple[str, ...], ...]:
    """The rules for `iptables -I FORWARD` and `ip6tables -I FORWARD` where the policy of that chain is DROP (Docker,
    some CNIs), which an nftables table cannot overrule: for what goes into the tunnel, and for what comes out of it.
    """
    tunnel = str(options.tunnel)
    return ("-o", tunnel, "-j", "ACCEPT"), ("-i", tunnel, "-j", "ACCEPT")


def _is(field: Field, value: str | int | LeadingBits | Member) -> Match:
    return Match(field, Comparison.IS, value)


def _is_not(field: Field, value: str | int) -> Match:
    return Match(field, Comparison.IS_NOT, value)


def _drop(counter: str, *matches: Match) -> Rule:
    return *matches, Count(counter), Verdict.DROP


_CLEAR: Final = Assign(Field.PACKET_CLASS, 0)


def _packet_table(options: EipTableOptions) -> NftTable:
    into_tunnel = _is(Field.OUTPUT_LINK, options.tunnel)
    out_of_tunnel = _is(Field.INPUT_LINK, options.tunnel)
    here = _is(Field.PACKET_MARK, HERE)
    keep_source: tuple[Rule, ...] = tuple(
        (into_tunnel, _is(Field.PACKET_MARK, FORWARDED), SourceNat(family, SOURCE[family])) for family in Family
    )
    prerouting = NftChain(
        name="prerouting",
        type=ChainType.FILTER,
        hook=Hook.PREROUTING,
        priority=Priority.AFTER_DSTNAT,
        rules=(
            (
                _is(Field.CONNECTION_DIRECTION, "reply"),
                _is(Field.CONNECTION_MARK, ANY_NODE),
                Assign(Field.PACKET_MARK, Field.CONNECTION_MARK),
            ),
            (_is(Field.CONNECTION_DIRECTION, "reply"), Verdict.ACCEPT),
            (out_of_tunnel, Jump("arrival")),
            *_class_rules("to"),
            _drop(DROPPED_STRAY, out_of_tunnel),
        ),
    )
    forward = NftChain(
        name="onward",
        type=ChainType.FILTER,
        hook=Hook.FORWARD,
        priority=Priority.MANGLE,
        rules=(
            (into_tunnel, _is(Field.PACKET_MARK, ANY_NODE), Assign(Field.PACKET_MARK, FORWARDED), Verdict.ACCEPT),
            _drop(DROPPED_CLOSED, _is(Field.PACKET_MARK, ANY_NODE), _is_not(Field.PACKET_MARK, HERE)),
            (Match(Field.CONNECTION_STATE, Comparison.AMONG, ("invalid", "new", "untracked")), Jump("beginning")),
        ),
    )
    postrouting = NftChain(
        name="postrouting",
        type=ChainType.NAT,
        hook=Hook.POSTROUTING,
        priority=Priority.BEFORE_SRCNAT,
        rules=(
            *(keep_source if options.keep_source else ()),
            (_is_not(Field.PACKET_MARK, HERE), Verdict.ACCEPT),
            *_class_rules("from"),
            _drop(DROPPED_UNTRANSLATED),
        ),
    )
    guard = NftChain(
        name="guard",
        type=ChainType.FILTER,
        hook=Hook.POSTROUTING,
        priority=Priority.AFTER_SRCNAT,
        rules=(
            (here, Match(Field.CONNECTION_STATE, Comparison.AMONG, "new"), _CLEAR),
            _drop(DROPPED_UNTRANSLATED, here, _is_not(Field.SOURCE_KIND, "local")),
            (into_tunnel, Match(Field.TCP_FLAGS, Comparison.AMONG, "syn"), ClampSegments()),
        ),
    )
    return NftTable(
        name=TABLE,
        counters=(DROPPED_CLOSED, DROPPED_FENCED, DROPPED_FOREIGN, DROPPED_STRAY, DROPPED_UNTRANSLATED),
        sets=packet_sets(),
        chains=(
            *_decision_chains(out_of_tunnel),
            _elsewhere_chain(),
            _path_chain(),
            *(_destination_chain(family) for family in Family),
            *(chain for family in Family for chain in _source_chains(family)),
            _beginning_chain(),
            *(prerouting, forward, postrouting, guard, _probe_chain()),
            *(_mesh_chain(options), _input_chain(), _output_chain()),
        ),
    )


def _class_rules(chain: str) -> tuple[Rule, ...]:
    """To the chain of that name and family, with the class of the source, if it has one."""
    return tuple(
        (Assign(Field.PACKET_CLASS, Lookup(SOURCE[family], classes.name)), Goto(f"{chain}{BITS[family]}"))
        for family in Family
        for classes in (SETS[family].classes, SETS[family].subnet_classes)
    )


def _decision_chains(out_of_tunnel: Match) -> tuple[RegularChain, ...]:
    arrival = RegularChain(
        name="arrival",
        rules=(
            (Assign(Field.CONNECTION_MARK, Lookup(Field.ETHER_SOURCE, NODES.name)), Verdict.RETURN),
            _drop(DROPPED_STRAY),
        ),
    )
    decided = RegularChain(
        name="decided",
        rules=(
            (_CLEAR,),
            _drop(DROPPED_CLOSED, _is(Field.PACKET_MARK, CLOSED)),
            (_is(Field.PACKET_MARK, HERE), Goto("here")),
            _drop(DROPPED_STRAY, out_of_tunnel),
        ),
    )
    undecided = RegularChain(name="undecided", rules=((_CLEAR,), _drop(DROPPED_STRAY, out_of_tunnel)))
    here = RegularChain(
        name="here",
        rules=(
            # What belongs to no connection is never translated.
            _drop(DROPPED_UNTRANSLATED, Match(Field.CONNECTION_STATE, Comparison.AMONG, ("invalid", "untracked"))),
            (_is(Field.FAMILY, Member(ALIVE.name)), Verdict.ACCEPT),
            _drop(DROPPED_FENCED),
        ),
    )
    return arrival, here, decided, undecided


def _elsewhere_chain() -> RegularChain:
    """What comes to a floating address and belongs to no connection here, at a node that does not have the address: its
    sender does not know yet where it is. Nobody listens there. If it were sent on, conntrack would have a connection
    from the server to the address, and when the address is here (again), the pod's own packets of the real one would
    leave from another port, which the server would answer with a reset.
    """
    return RegularChain(
        name="elsewhere",
        rules=(
            _drop(
                DROPPED_STRAY,
                _is(Field.IPV4_DESTINATION, Member(SETS[Family.IPV4].floating.name)),
                _is_not(Field.PROTOCOL, "icmp"),
            ),
            _drop(
                DROPPED_STRAY,
                _is(Field.IPV6_DESTINATION, Member(SETS[Family.IPV6].floating.name)),
                _is_not(Field.PROTOCOL, "ipv6-icmp"),
            ),
        ),
    )


def _beginning_chain() -> RegularChain:
    """What belongs to no connection yet, or to none at all, and has no way of a policy.

    Its sender may be a pod that has just started: a policy may select it, and the agent does not know its address, or
    does not run. Until it does, such a sender reaches no destination of policies that fail closed.
    """
    return RegularChain(
        name="beginning",
        rules=(
            (Match(Field.CONNECTION_STATE, Comparison.AMONG, "new"), Jump("elsewhere")),
            (_is(Field.PACKET_MARK, HERE), Verdict.RETURN),
            (_is(Field.FAMILY, Member(CURRENT.name)), Verdict.RETURN),
            *(
                (
                    Match(SOURCE[family], Comparison.IS_NOT, Member(SETS[family].known.name)),
                    Assign(Field.PACKET_CLASS, UNKNOWN),
                    Goto(f"to{BITS[family]}"),
                )
                for family in Family
            ),
        ),
    )


def _path_chain() -> RegularChain:
    """By the policy."""
    return RegularChain(
        name="way",
        rules=(
            (Assign(Field.PACKET_MARK, Lookup(Field.PACKET_CLASS, WAYS.name)), Goto("decided")),
            (Goto("undecided"),),
        ),
    )


def _destination_chain(family: Family) -> RegularChain:
    """By the class."""
    names, destination = SETS[family], DESTINATION[family]
    return RegularChain(
        name=f"to{BITS[family]}",
        rules=(
            (_choose((Field.PACKET_CLASS, destination), names.choices), Goto("way")),
            (_is(destination, Member(names.cluster.name)), Goto("undecided")),
            (_choose(Field.PACKET_CLASS, names.default_choices), Goto("way")),
            (Goto("undecided"),),
        ),
    )


def _source_chains(family: Family) -> tuple[RegularChain, ...]:
    """By the policy, and by the class."""
    names, number = SETS[family], BITS[family]
    translation = RegularChain(
        name=f"source{number}",
        rules=(
            (SourceNat(family, Lookup(Field.PACKET_CLASS, names.eips.name)),),
            (_is(Field.PACKET_CLASS, Member(NODE_IPS.name)), Verdict.MASQUERADE),
            _drop(DROPPED_UNTRANSLATED),
        ),
    )
    choice = RegularChain(
        name=f"from{number}",
        rules=(
            (_choose((Field.PACKET_CLASS, DESTINATION[family]), names.choices), Goto(translation.name)),
            (_choose(Field.PACKET_CLASS, names.default_choices), Goto(translation.name)),
            _drop(DROPPED_UNTRANSLATED),
        ),
    )
    return translation, choice


def _choose(key: Key, choices: SetName) -> Assign:
    """The policy, in the place of the class."""
    return Assign(Field.PACKET_CLASS, Lookup(key, choices.name))


def _mesh_chain(options: EipTableOptions) -> NftChain:
    """Pods and hosts outside are no nodes: what they sent to the port would leave with the address of any tenant, by
    the hardware address of a node, which follows from the node's name.
    """
    return NftChain(
        name="mesh",
        type=ChainType.FILTER,
        hook=Hook.INPUT,
        priority=Priority.MANGLE,
        rules=tuple(
            _drop(
                DROPPED_FOREIGN,
                _is(Field.UDP_DESTINATION_PORT, options.port),
                Match(SOURCE[family], Comparison.IS_NOT, Member(SETS[family].mesh.name)),
            )
            for family in Family
        ),
    )


def _input_chain() -> NftChain:
    """Nobody listens on a floating address. Above all, the node must not answer for a connection that it has taken over
    and whose pod has not spoken yet: a reset would end it.

    Who asks where a floating IPv6 address is, is heard only while alive. The question is what is dropped, as the answer
    of a proxy comes from the node's own address, and nftables 1.0.6 has no word for what it is about. Meanwhile an own
    address that shares the group of a floating one is not found by new neighbours either.
    """
    return NftChain(
        name="local",
        type=ChainType.FILTER,
        hook=Hook.INPUT,
        priority=Priority.FILTER,
        rules=(
            (
                _is(Field.IPV4_DESTINATION, Member(SETS[Family.IPV4].held.name)),
                _is_not(Field.PROTOCOL, "icmp"),
                Verdict.DROP,
            ),
            (
                _is(Field.IPV6_DESTINATION, Member(SETS[Family.IPV6].held.name)),
                _is_not(Field.PROTOCOL, "ipv6-icmp"),
                Verdict.DROP,
            ),
            (_is(Field.FAMILY, Member(ALIVE.name)), Verdict.ACCEPT),
            *(
                (
                    _is(Field.ICMPV6_TYPE, "nd-neighbor-solicit"),
                    _is(Field.IPV6_DESTINATION, Member(name.name)),
                    Verdict.DROP,
                )
                for name in (SETS[Family.IPV6].held, SOLICITED)
            ),
        ),
    )


def _output_chain() -> NftChain:
    """What is said or asked from a floating address tells where it is."""
    return NftChain(
        name="discovery",
        type=ChainType.FILTER,
        hook=Hook.OUTPUT,
        priority=Priority.FILTER,
        rules=(
            (_is(Field.FAMILY, Member(ALIVE.name)), Verdict.ACCEPT),
            *(
                (
                    _is(Field.ICMPV6_TYPE, kind),
                    _is(Field.IPV6_SOURCE, Member(SETS[Family.IPV6].held.name)),
                    Verdict.DROP,
                )
                for kind in ("nd-neighbor-solicit", "nd-neighbor-advert")
            ),
        ),
    )


def _probe_chain() -> NftChain:
    """What the node says to a pod in the name of a server. Conntrack would take it for the server's, or, where it is to
    learn of the connection from the pod's answer, for the beginning of one the other way round.
    """
    return NftChain(
        name="nudges",
        type=ChainType.FILTER,
        hook=Hook.OUTPUT,
        priority=Priority.RAW,
        rules=((_is(Field.PACKET_MARK, PROBE_MARK), NoTrack()),),
    )


def _arp_table() -> NftTable:
    """While not alive: no answer for a floating address, no question from one, and none is heard."""
    alive: Rule = (_is(Field.ARP_OPERATION, Member(ARP_ALIVE.name)), Verdict.ACCEPT)
    chains = (("asking", Hook.OUTPUT, Field.ARP_SOURCE), ("asked", Hook.INPUT, Field.ARP_DESTINATION))
    return NftTable(
        family=TableFamily.ARP,
        name=TABLE,
        sets=arp_sets(),
        chains=tuple(
            NftChain(
                name=name,
                type=ChainType.FILTER,
                hook=hook,
                priority=Priority.FILTER,
                rules=(alive, (_is(field, Member(ARP_EIPS.name)), Verdict.DROP)),
            )
            for name, hook, field in chains
        ),
    )
