"""The nftables tables of the data plane: rules that are the same whatever policies, pods and nodes there are.

Place in the flow: `coil.eip.data_plane` says what is in the sets and maps of these tables.

A packet of a pod, on its way out, at prerouting: its source gives its class (`class`, else `subnet_class`), the list of
the policies that concern it, and of these the first decides that has the destination (`range`, `everywhere`, or
`cluster_range` within the cluster). That one gives the packet's way (`way`), a mark: a node's, which leads into the
tunnel; `HERE`; or `CLOSED`, the end. Without one it goes on as if there were no policy. What comes out of the tunnel
has its class by its source and the node that it comes from (`remote_class`, else `subnet_class`), goes through the same
lookups, and may have no other way than `HERE`. Out of a gateway, the policy of what is `HERE`, looked up in the same
manner, gives its source address (`eip`, `node_ip`). Back: a connection that came through the tunnel bears the mark of
the node that it came from, which leads the replies there.

A connection of a pod of this node for which it was decided that it leaves from here, and that has an address of this
node, bears a mark that says so, and by which decision (`decision`). While that stands (`valid`), its packets need no
lookup but that one, and `HERE_DECIDED` brings them through the later chains. A connection that has a mark of somebody
else's is looked up packet by packet.

Class and policy are numbers that have to be held between two lookups. The packet's traffic class holds them: forwarding
sets that anew (IPv4), and nobody else asks for it before; it is zero again after the lookups.

Anybody can send to the tunnel's port what looks like a tunnel's: it is taken from addresses of nodes only (`mesh`), and
each node may use the hardware address of its own tunnel only (`peers`): what is wrapped keeps the mark that the packet
around it was given for its source. And a node speaks for its own pods only: `remote_class` has no other node's. Of a
source that a policy selects by `podSubnet`, nobody knows where it is, so any node may send that. What pods send to the
port is not forwarded, as policies and other programs may translate its source to a node's address.

Looked at after DNAT, so that both nodes see one destination: a Service is what stands behind it, and kube-proxy's marks
are not written into ours. Fails closed, everywhere: what has a node's mark leaves by the tunnel or not at all, and what
is `HERE` leaves with an address of this node or not at all, whatever happened to a connection's translation.

While no renewal of the node's lease was acknowledged (`alive` has run out), nothing goes out with a floating address,
and nobody is told where it is: neither ARP nor neighbour discovery answer for `eips`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from coil.eip.eip_set import (
    ALIVE,
    ALONE,
    ANY_NODE,
    ARP_ALIVE,
    ARP_EIPS,
    BITS,
    CACHED,
    CLOSED,
    CURRENT,
    DECIDED,
    DECIDED_BIT,
    DECISIONS,
    EVERYWHERE,
    FAMILY_WORDS,
    FORWARDED,
    GUARDED_ALL,
    HERE,
    HERE_DECIDED,
    MOST_POLICIES,
    NEXT,
    NODE_IPS,
    NODES,
    PEERS,
    PENDING,
    POD_TIMEOUTS,
    POLICY_MASK,
    POLICY_SHIFT,
    PROBE_MARK,
    SETS,
    SHARDS,
    SOLICITED,
    TABLE,
    TIMEOUTS,
    VALID,
    arp_sets,
    packet_sets,
)
from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.nft_element import SetName
from coil.kernel.nft_table import (
    DESTINATION,
    MISSING,
    SOURCE,
    Assign,
    ChainType,
    ClampSegments,
    Comparison,
    Count,
    Field,
    Goto,
    HasBits,
    Hook,
    Jump,
    Key,
    LeadingBits,
    Lookup,
    MaskedField,
    Match,
    Member,
    NftChain,
    NftTable,
    NoTrack,
    Priority,
    RegularChain,
    Rule,
    SetBits,
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
"""Came to a tunnel's port, and not from a node, or from one in the name of another."""
DROPPED_SPOOFED: Final = "dropped_spoofed"
"""Came by a link to which the node does not route its source."""
DROPPED_STRAY: Final = "dropped_stray"
"""Came from outside to a floating address, or through the tunnel, and this node does not carry it (any more), or not
for the node that it came from.
"""
DROPPED_UNTRANSLATED: Final = "dropped_untranslated"
"""Would have left this node with a source that is not the node's."""


_TUNNEL: Final = LinkName("egress.vxlan")
TUNNEL_PORT: Final = 7789
"""By default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EipTableOptions:
    """`port` is the tunnel's; `wireguard` is the link that carries it where the mesh is encrypted. `keep_source`: what
    goes into the tunnel is not masqueraded by other tables, as those of Weave and others do. `verify_source`: nobody
    else keeps pods to their own addresses, so what has a class must have come by the link to which the node routes its
    source.
    """

    tunnel: LinkName = _TUNNEL
    port: int = TUNNEL_PORT
    wireguard: LinkName | None = None
    keep_source: bool = True
    verify_source: bool = False


def plan_eip_tables(options: EipTableOptions) -> tuple[NftTable, NftTable]:
    """The table of packets, and the one of ARP."""
    return _packet_table(options), _arp_table()


def forward_shim(options: EipTableOptions) -> tuple[tuple[str, ...], ...]:
    """The rules for `iptables -I FORWARD` and `ip6tables -I FORWARD` where the policy of that chain is DROP (Docker,
    some CNIs), which an nftables table cannot overrule: for what goes into the tunnel, and for what comes out of it.
    """
    tunnel = str(options.tunnel)
    return ("-o", tunnel, "-j", "ACCEPT"), ("-i", tunnel, "-j", "ACCEPT")


def _is(field: Key, value: str | int | LeadingBits | HasBits | Member) -> Match:
    return Match(field, Comparison.IS, value)


def _is_not(field: Field, value: str | int) -> Match:
    return Match(field, Comparison.IS_NOT, value)


def _drop(counter: str, *matches: Match) -> Rule:
    return *matches, Count(counter), Verdict.DROP


_CLEAR: Final = Assign(Field.PACKET_CLASS, 0)


def _packet_table(options: EipTableOptions) -> NftTable:
    into_tunnel = _is(Field.OUTPUT_LINK, options.tunnel)
    out_of_tunnel = _is(Field.INPUT_LINK, options.tunnel)
    to_tunnel = _is(Field.UDP_DESTINATION_PORT, options.port)
    here, here_decided = (_is(Field.PACKET_MARK, mark) for mark in (HERE, HERE_DECIDED))
    keep_source: tuple[Rule, ...] = tuple(
        (into_tunnel, _is(Field.PACKET_MARK, FORWARDED), SourceNat(family, SOURCE[family])) for family in Family
    )
    decided = _is(Field.CONNECTION_MARK, DECIDED)
    astray = Match(Field.RETURN_LINK, Comparison.IS, MISSING)
    prerouting = NftChain(
        name="prerouting",
        type=ChainType.FILTER,
        hook=Hook.PREROUTING,
        priority=Priority.AFTER_DSTNAT,
        rules=(
            (_is(Field.CONNECTION_DIRECTION, "reply"), Goto("replies")),
            (out_of_tunnel, Jump("arrival")),
            *((_drop(DROPPED_SPOOFED, decided, astray),) if options.verify_source else ()),
            (
                decided,
                _is(Field.CONNECTION_MARK, Member(VALID.name)),
                _is(Field.FAMILY, Member(ALIVE.name)),
                Assign(Field.PACKET_MARK, HERE_DECIDED),
                Verdict.ACCEPT,
            ),
            *(
                (out_of_tunnel, _is(Field.FAMILY, word), Goto(f"to{BITS[family]}"))
                for family, word in FAMILY_WORDS.items()
            ),
            *_class_rules("to", _LOCAL_CLASSES, _SUBNET_CLASSES),
        ),
    )
    forward = NftChain(
        name="onward",
        type=ChainType.FILTER,
        hook=Hook.FORWARD,
        priority=Priority.MANGLE,
        rules=(
            (to_tunnel, Jump("to_node")),
            # Between nodes only: neither a pod's packet nor one for a pod has anything to do there.
            *(
                _drop(DROPPED_FOREIGN, _is(field, options.wireguard))
                for field in (Field.INPUT_LINK, Field.OUTPUT_LINK)
                if options.wireguard is not None
            ),
            (here_decided, Verdict.ACCEPT),
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
            *_class_rules("from", _LOCAL_CLASSES, _remote_classes(Field.CONNECTION_MARK), _SUBNET_CLASSES),
            _drop(DROPPED_UNTRANSLATED),
        ),
    )
    guard = NftChain(
        name="guard",
        type=ChainType.FILTER,
        hook=Hook.POSTROUTING,
        priority=Priority.AFTER_SRCNAT,
        rules=(
            (here_decided, Verdict.ACCEPT),
            (here, Match(Field.CONNECTION_STATE, Comparison.AMONG, "new"), _CLEAR),
            *((here, _is(SOURCE[family], Member(SETS[family].held.name)), Goto("own_source")) for family in Family),
            _drop(DROPPED_UNTRANSLATED, here, _is_not(Field.SOURCE_KIND, "local")),
            (here, Goto("own_source")),
            (into_tunnel, Match(Field.TCP_FLAGS, Comparison.AMONG, "syn"), ClampSegments()),
        ),
    )
    spoofed = _drop(DROPPED_SPOOFED, _is_not(Field.INPUT_LINK, options.tunnel), astray)
    entry = (spoofed,) if options.verify_source else ()
    return NftTable(
        name=TABLE,
        counters=(
            *(DROPPED_CLOSED, DROPPED_FENCED, DROPPED_FOREIGN),
            *(DROPPED_SPOOFED, DROPPED_STRAY, DROPPED_UNTRANSLATED),
        ),
        sets=packet_sets(),
        chains=(
            *_decision_chains(out_of_tunnel),
            *_beginning_chains(),
            *(chain for family in Family for chain in _path_chains(family, entry)),
            *(chain for family in Family for chain in _source_chains(family)),
            *(prerouting, forward, postrouting, guard, _probe_chain()),
            *(_mesh_chain(options), _unwrapped_chain(options.tunnel), _input_chain(), _output_chain()),
            *_encryption_chains(options),
        ),
    )


_LOCAL_CLASSES: Final = {family: Lookup(SOURCE[family], SETS[family].classes.name) for family in Family}
_SUBNET_CLASSES: Final = {family: Lookup(SOURCE[family], SETS[family].subnet_classes.name) for family in Family}


def _remote_classes(node: Field) -> Mapping[Family, Lookup]:
    """`node` has the mark of the node that the packet came from."""
    return {family: Lookup((node, SOURCE[family]), SETS[family].remote_classes.name) for family in Family}


def _class_rules(chain: str, *lookups: Mapping[Family, Lookup]) -> tuple[Rule, ...]:
    """To the chain of that name and family, with the class that the first of the lookups has, if one has one."""
    return tuple(
        (Assign(Field.PACKET_CLASS, lookup[family]), Goto(f"{chain}{BITS[family]}"))
        for family in Family
        for lookup in lookups
    )


def _decision_chains(out_of_tunnel: Match) -> tuple[RegularChain, ...]:
    """Those that are the same for both families."""
    replies = RegularChain(
        name="replies",
        rules=(
            (_is(Field.CONNECTION_MARK, ANY_NODE), Assign(Field.PACKET_MARK, Field.CONNECTION_MARK)),
            (Verdict.ACCEPT,),
        ),
    )
    # Whose connection it is, only a packet says that its node may send: another one would lead the replies elsewhere.
    # These chains return, as calls would nest too deeply if they led on (`NFT_JUMP_STACK_SIZE`, nf_tables.h).
    of_peer = RegularChain(
        name="of_peer",
        rules=(
            *(
                (
                    Assign(Field.PACKET_CLASS, lookup[family]),
                    Assign(Field.CONNECTION_MARK, Field.PACKET_MARK),
                    Verdict.RETURN,
                )
                for family in Family
                for lookup in (_remote_classes(Field.PACKET_MARK), _SUBNET_CLASSES)
            ),
            _drop(DROPPED_STRAY),
        ),
    )
    arrival = RegularChain(
        name="arrival",
        rules=(
            (Assign(Field.PACKET_MARK, Lookup(Field.ETHER_SOURCE, NODES.name)), Goto(of_peer.name)),
            _drop(DROPPED_STRAY),
        ),
    )
    held = RegularChain(
        name="held",
        rules=(
            (_is(Field.CONNECTION_MARK, CACHED), Assign(Field.CONNECTION_MARK, 0)),
            (
                _is(Field.CONNECTION_MARK, 0),
                Assign(Field.CONNECTION_MARK, Lookup(Field.PACKET_CLASS, DECISIONS.name)),
            ),
            (_CLEAR,),
            (Verdict.ACCEPT,),
        ),
    )
    here = RegularChain(
        name="here",
        rules=(
            # What belongs to no connection is never translated.
            _drop(DROPPED_UNTRANSLATED, Match(Field.CONNECTION_STATE, Comparison.AMONG, ("invalid", "untracked"))),
            (_is(Field.FAMILY, Member(ALIVE.name)), Goto(held.name)),
            _drop(DROPPED_FENCED),
        ),
    )
    decided = RegularChain(
        name="decided",
        rules=(
            (_is(Field.PACKET_MARK, HERE), Goto(here.name)),
            _drop(DROPPED_CLOSED, _is(Field.PACKET_MARK, CLOSED)),
            _drop(DROPPED_STRAY, out_of_tunnel),
            (_CLEAR,),
            (Verdict.ACCEPT,),
        ),
    )
    undecided = RegularChain(
        name="undecided", rules=(_drop(DROPPED_STRAY, out_of_tunnel), (_CLEAR,), (Verdict.ACCEPT,))
    )
    own_source = RegularChain(
        name="own_source",
        rules=((_is(Field.CONNECTION_MARK, PENDING), SetBits(Field.CONNECTION_MARK, DECIDED_BIT)),),
    )
    untranslated = RegularChain(name="untranslated", rules=(_drop(DROPPED_UNTRANSLATED),))
    # Later its source may be translated to a node's address, and the sender would pass for a node.
    to_node = RegularChain(
        name="to_node",
        rules=tuple((_mark_of(DESTINATION[family], family), Count(DROPPED_FOREIGN), Verdict.DROP) for family in Family),
    )
    return replies, of_peer, arrival, held, here, decided, undecided, own_source, untranslated, to_node


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


def _beginning_chains() -> tuple[RegularChain, ...]:
    """What belongs to no connection yet, or to none at all, and has no way of a policy.

    Its sender may be a pod that has just started: a policy may select it, and the agent does not know its address, or
    does not run. Until it does, such a sender reaches no destination of policies that fail closed.
    """
    elsewhere = _elsewhere_chain()
    unknown = [_unknown_chains(family) for family in Family]
    beginning = RegularChain(
        name="beginning",
        rules=(
            (Match(Field.CONNECTION_STATE, Comparison.AMONG, "new"), Jump(elsewhere.name)),
            (_is(Field.PACKET_MARK, HERE), Verdict.RETURN),
            (_is(Field.FAMILY, Member(CURRENT.name)), Verdict.RETURN),
            *(
                (
                    Match(SOURCE[family], Comparison.IS_NOT, Member(SETS[family].known.name)),
                    Goto(beyond.name),
                )
                for family, (_, beyond) in zip(Family, unknown, strict=True)
            ),
        ),
    )
    return elsewhere, *(chain for chains in unknown for chain in chains), beginning


def _unknown_chains(family: Family) -> tuple[RegularChain, RegularChain]:
    names, number, destination = SETS[family], BITS[family], DESTINATION[family]
    within = RegularChain(
        name=f"unknown_cluster{number}",
        rules=(_drop(DROPPED_CLOSED, _is(destination, Member(names.guarded_cluster.name))),),
    )
    beyond = RegularChain(
        name=f"unknown{number}",
        rules=(
            (_is(destination, Member(names.cluster.name)), Goto(within.name)),
            _drop(DROPPED_CLOSED, _is(destination, Member(names.guarded.name))),
            _drop(DROPPED_CLOSED, _is(Field.FAMILY, Member(GUARDED_ALL.name))),
        ),
    )
    return within, beyond


_POLICY: Final = MaskedField(Field.PACKET_CLASS, POLICY_MASK, ALONE)
"""The first policy of the packet's class."""


def _path_chains(family: Family, entry: tuple[Rule, ...]) -> tuple[RegularChain, ...]:
    """From the class to the policy, and by that to the way. `entry` comes first of all."""
    number = BITS[family]
    way = RegularChain(
        name=f"way{number}",
        rules=(
            (Assign(Field.PACKET_MARK, Lookup(Field.PACKET_CLASS, SETS[family].ways.name)), Goto("decided")),
            (Goto("undecided"),),
        ),
    )
    return way, *_choice_chains(family, "to", entry, found=way.name, missed="undecided")


def _source_chains(family: Family) -> tuple[RegularChain, ...]:
    """From the class to the policy, and by that to the source address."""
    names, number = SETS[family], BITS[family]
    translation = RegularChain(
        name=f"source{number}",
        rules=(
            (SourceNat(family, Lookup(Field.PACKET_CLASS, names.eips.name)),),
            (_is(Field.PACKET_CLASS, Member(NODE_IPS.name)), Verdict.MASQUERADE),
            _drop(DROPPED_UNTRANSLATED),
        ),
    )
    return translation, *_choice_chains(family, "from", (), found=translation.name, missed="untranslated")


_QUARTER: Final = 4
"""How many sets of ranges one chain chooses from. By comparisons, as versions of nft crash where they list a map of
verdicts without a name that a newer one has written.
"""


def _is_shard(shard: int, bits: int) -> Match:
    """Whether these bits of the shard of a policy are those of that one."""
    return _is(Field.PACKET_CLASS, HasBits((shard & bits) << POLICY_SHIFT, bits << POLICY_SHIFT))


def _choice_chains(
    family: Family, prefix: str, entry: tuple[Rule, ...], *, found: str, missed: str
) -> Iterator[RegularChain]:
    """To the chain `found` with the first policy of the class that has the destination, in the place of the class; or
    to `missed`. They begin with the last one.
    """
    names, destination, start = SETS[family], DESTINATION[family], f"{prefix}{BITS[family]}"

    def look_up(key: Key, name: SetName) -> Rule:
        return Assign(Field.PACKET_CLASS, Lookup(key, name.name)), Goto(found)

    for shard, name in enumerate(names.ranges):
        yield RegularChain(name=f"{start}_range_{shard:x}", rules=(look_up((_POLICY, destination), name),))
    quarters = {shard: f"{start}_ranges_{shard:x}" for shard in range(0, SHARDS, _QUARTER)}
    for first, quarter in quarters.items():
        choices = tuple(
            (_is_shard(shard, _QUARTER - 1), Goto(f"{start}_range_{shard:x}"))
            for shard in range(first, first + _QUARTER)
        )
        yield RegularChain(name=quarter, rules=choices)
    spread = tuple((_is_shard(first, SHARDS - _QUARTER), Jump(quarter)) for first, quarter in quarters.items())
    beyond = (*spread, look_up(_POLICY, EVERYWHERE))
    within = (look_up((_POLICY, destination), names.cluster_ranges),)
    for place, rules in ((f"{start}_cluster", within), (f"{start}_beyond", beyond)):
        for position in reversed(range(MOST_POLICIES)):
            onward: tuple[Rule, ...] = ()
            if position + 1 < MOST_POLICIES:
                following = Assign(Field.PACKET_CLASS, Lookup(Field.PACKET_CLASS, NEXT.name))
                onward = ((following, Goto(f"{place}_{position + 1}")),)
            yield RegularChain(name=f"{place}_{position}", rules=(*rules, *onward, (Goto(missed),)))
    yield RegularChain(
        name=start,
        rules=(
            *entry,
            (_is(destination, Member(names.cluster.name)), Goto(f"{start}_cluster_0")),
            (Goto(f"{start}_beyond_0"),),
        ),
    )


def _mesh_chain(options: EipTableOptions) -> NftChain:
    """Pods and hosts outside are no nodes: what they sent to the port would leave with the address of any tenant, by
    the hardware address of a node, which follows from the node's name. Where the mesh is encrypted, only what the link
    of WireGuard has decrypted is for the tunnel, and it is for nothing else.
    """
    to_tunnel = _is(Field.UDP_DESTINATION_PORT, options.port)
    encrypted: tuple[Rule, ...] = ()
    if options.wireguard is not None:
        by_wireguard, port = _is(Field.INPUT_LINK, options.wireguard), Field.UDP_DESTINATION_PORT
        encrypted = (
            _drop(DROPPED_FOREIGN, _is(port, options.port), _is_not(Field.INPUT_LINK, options.wireguard)),
            _drop(DROPPED_FOREIGN, by_wireguard, _is_not(port, options.port)),
            _drop(DROPPED_FOREIGN, by_wireguard, _is_not(Field.PROTOCOL, "udp")),
        )
    return NftChain(
        name="mesh",
        type=ChainType.FILTER,
        hook=Hook.INPUT,
        # The last one: others that set marks of packets for the node, such as Calico, must not change this one.
        priority=Priority.AFTER_SRCNAT,
        rules=(
            *encrypted,
            *((to_tunnel, _mark_of(SOURCE[family], family), Verdict.ACCEPT) for family in Family),
            _drop(DROPPED_FOREIGN, to_tunnel),
        ),
    )


def _mark_of(end: Field, family: Family) -> Assign:
    """Give the packet the mark of the node that has that address; where no node has it, the rule ends."""
    return Assign(Field.PACKET_MARK, Lookup(end, SETS[family].mesh.name))


def _unwrapped_chain(tunnel: LinkName) -> NftChain:
    """What was wrapped has the mark that the packet around it got in `mesh` (`skb_scrub_packet`, net/core/skbuff.c:
    within one namespace it stays). It ends here, before others look at the packet: it would lead back to that node.
    """
    known = _is((Field.PACKET_MARK, Field.ETHER_SOURCE), Member(PEERS.name))
    return NftChain(
        name="unwrapped",
        type=ChainType.FILTER,
        hook=Hook.PREROUTING,
        priority=Priority.BEFORE_RAW,
        rules=(
            (_is_not(Field.INPUT_LINK, tunnel), Verdict.ACCEPT),
            (known, Assign(Field.PACKET_MARK, 0), Verdict.ACCEPT),
            _drop(DROPPED_FOREIGN),
        ),
    )


def _encryption_chains(options: EipTableOptions) -> tuple[NftChain, ...]:
    """Without the link or its route, the node's default route would take the tunnel's packets as they are."""
    if options.wireguard is None:
        return ()
    into_tunnel = _is(Field.UDP_DESTINATION_PORT, options.port)
    return (
        NftChain(
            name="encryption",
            type=ChainType.FILTER,
            hook=Hook.OUTPUT,
            priority=Priority.MANGLE,
            rules=(_drop(DROPPED_CLOSED, into_tunnel, _is_not(Field.OUTPUT_LINK, options.wireguard)),),
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
