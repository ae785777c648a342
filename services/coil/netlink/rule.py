"""Policy routing rules: the codec (`struct fib_rule_hdr` and FRA_*, linux/fib_rules.h), and the rules of a namespace
read and brought in line.

    read_rules(connection)
    read_foreign_rules(connection)               all there are, as far as they are understood
    sync_rules(wanted, claim=, connection=)      for rules with selectors
    delete_rules(rules, connection)              of another program
    ensure_rules(rules, connection)              for those that are for every packet

Runs in a worker's thread, in that namespace.
"""

import errno
import struct
from collections.abc import Callable, Collection
from ipaddress import ip_network
from typing import Final

from coil.kernel.family import Family, IPNetwork
from coil.kernel.foreign_rule import ForeignRule, RuleAction
from coil.kernel.link import LinkName
from coil.kernel.mark import (
    GATE_PRIORITY,
    LANDING_PRIORITY,
    MARK_PROTOCOL,
    NODE_MARK,
    NODE_MARK_MASK,
    MarkGate,
)
from coil.kernel.rule import WHOLE_MARK, Rule, RuleChanges, RuleClaim, diff_claimed_rules, diff_rules
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.wire import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    attribute_u32,
    parse_attributes,
    parse_s32,
    parse_text,
    parse_u8,
    parse_u32,
)

RTM_NEWRULE = 32
RTM_DELRULE = 33
RTM_GETRULE = 34

_RULE = struct.Struct("=BBBBBxxBI")  # family, dst and src length, tos, table, action, flags
_FR_ACT_TO_TBL = 1
_FR_ACT_GOTO = 2
_FR_ACT_NOP = 3
_FIB_RULE_INVERT = 2
_FRA_DST = 1
_FRA_SRC = 2
_FRA_IIFNAME = 3
_FRA_GOTO = 4
_FRA_PRIORITY = 6
_FRA_FWMARK = 10
_FRA_SUPPRESS_IFGROUP = 13
_FRA_SUPPRESS_PREFIXLEN = 14
_FRA_TABLE = 15
_FRA_FWMASK = 16
_FRA_PAD = 18
_FRA_PROTOCOL = 21
_UNDERSTOOD = frozenset(
    {
        _FRA_DST,
        _FRA_SRC,
        _FRA_IIFNAME,
        _FRA_GOTO,
        _FRA_PRIORITY,
        _FRA_FWMARK,
        _FRA_SUPPRESS_IFGROUP,
        _FRA_SUPPRESS_PREFIXLEN,
        _FRA_TABLE,
        _FRA_FWMASK,
        _FRA_PAD,
        _FRA_PROTOCOL,
    }
)
_NO_SUPPRESSION = b"\xff\xff\xff\xff"
_FRA_OIFNAME = 17
_FRA_L3MDEV = 19
_FRA_UID_RANGE = 20
_LOCAL = frozenset({_FRA_OIFNAME, _FRA_L3MDEV})
"""What packets that are only forwarded, by a link that belongs to no VRF, do not fit."""


def new_rule(rule: Rule) -> Request:
    """Add a rule. EEXIST where there is one of the same priority and table that has its selectors, or more."""
    return Request(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, _rule_body(rule), ("add", rule))


def append_rule(rule: Rule) -> Request:
    """Add a rule, even if there is an equal one: what the kernel takes for equal may have more selectors (rule_exists
    in net/core/fib_rules.c compares what the request names).
    """
    return Request(RTM_NEWRULE, NLM_F_CREATE, _rule_body(rule), ("add", rule))


def delete_rule(rule: Rule) -> Request:
    """Delete the first rule of that priority, table and protocol that has these selectors, or more. ENOENT where there
    is none.
    """
    return Request(RTM_DELRULE, 0, _rule_body(rule), ("delete", rule))


def _rule_body(rule: Rule) -> bytes:
    to, source = rule.destination, rule.source
    lengths = [network.prefixlen if network is not None else 0 for network in (to, source)]
    action = _FR_ACT_TO_TBL if rule.goto is None else _FR_ACT_GOTO
    body = (
        _RULE.pack(rule.family, *lengths, 0, 0, action, 0)
        + attribute_u32(_FRA_PRIORITY, rule.priority)
        + (attribute_u32(_FRA_TABLE, rule.table) if rule.goto is None else attribute_u32(_FRA_GOTO, rule.goto))
        + attribute_u8(_FRA_PROTOCOL, rule.protocol)
    )
    if to is not None:
        body += attribute(_FRA_DST, to.network_address.packed)
    if source is not None:
        body += attribute(_FRA_SRC, source.network_address.packed)
    if rule.iif is not None:
        body += attribute_text(_FRA_IIFNAME, rule.iif)
    if rule.mark is not None:
        body += attribute_u32(_FRA_FWMARK, rule.mark) + attribute_u32(_FRA_FWMASK, rule.mask)
    return body


def new_gate(gate: MarkGate) -> list[Request]:
    """Add the rules of the gate, first the one that the others lead to. EEXIST where one is there already."""
    return [Request(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, body, ("add", gate)) for body in _gate_bodies(gate)]


def delete_gate(gate: MarkGate) -> list[Request]:
    """Delete the rules of the gate, in the opposite order. ENOENT where one is not there."""
    return [Request(RTM_DELRULE, 0, body, ("delete", gate)) for body in reversed(_gate_bodies(gate))]


def _gate_bodies(gate: MarkGate) -> list[bytes]:
    protocol = attribute_u8(_FRA_PROTOCOL, MARK_PROTOCOL)
    landing = _RULE.pack(gate.family, 0, 0, 0, 0, _FR_ACT_NOP, 0) + attribute_u32(_FRA_PRIORITY, LANDING_PRIORITY)
    bodies = [landing + protocol]
    for flags, mask in ((_FIB_RULE_INVERT, NODE_MARK_MASK), (0, WHOLE_MARK)):
        jump = _RULE.pack(gate.family, 0, 0, 0, 0, _FR_ACT_GOTO, flags)
        jump += attribute_u32(_FRA_PRIORITY, GATE_PRIORITY) + attribute_u32(_FRA_GOTO, LANDING_PRIORITY)
        bodies.append(jump + attribute_u32(_FRA_FWMARK, NODE_MARK) + attribute_u32(_FRA_FWMASK, mask) + protocol)
    return bodies


def dump_rules(family: Family) -> Request:
    """Ask for all rules of one family."""
    return Request(RTM_GETRULE, NLM_F_DUMP, _RULE.pack(family, 0, 0, 0, 0, 0, 0), ("list rules",))


def parse_rule(body: bytes) -> Rule | None:
    """Read an RTM_NEWRULE message; None for rules that select by what `Rule` does not know, or do something else."""
    family, dst_length, src_length, tos, table, action, flags = _RULE.unpack_from(body)
    attributes = parse_attributes(body, _RULE.size)
    if (
        family not in tuple(Family)  # multicast routing has rules as well, and tells of them in the same group
        or action not in (_FR_ACT_TO_TBL, _FR_ACT_GOTO)
        or flags & _FIB_RULE_INVERT
        or tos
        or not attributes.keys() <= _UNDERSTOOD
    ):
        return None
    # A rule that suppresses short prefixes is no plain lookup; −1 stands for none.
    if attributes.get(_FRA_SUPPRESS_PREFIXLEN, _NO_SUPPRESSION) != _NO_SUPPRESSION:
        return None
    mask = parse_u32(attributes[_FRA_FWMASK]) if _FRA_FWMASK in attributes else None
    mark = parse_u32(attributes[_FRA_FWMARK]) if _FRA_FWMARK in attributes else 0
    if mask is not None and mark & ~mask:
        return None  # the kernel takes it, and no packet is meant
    iif = attributes.get(_FRA_IIFNAME)
    protocol = attributes.get(_FRA_PROTOCOL)
    if action == _FR_ACT_TO_TBL:
        table, goto = parse_u32(attributes[_FRA_TABLE]) if _FRA_TABLE in attributes else table, None
    else:
        table, goto = 0, parse_u32(attributes[_FRA_GOTO])
    return Rule(
        family=Family(family),
        priority=parse_u32(attributes[_FRA_PRIORITY]) if _FRA_PRIORITY in attributes else 0,
        table=table,
        protocol=parse_u8(protocol) if protocol else 0,
        source=_network(attributes[_FRA_SRC], src_length) if src_length else None,
        destination=_network(attributes[_FRA_DST], dst_length) if dst_length else None,
        iif=LinkName(parse_text(iif)) if iif is not None else None,
        mark=mark if mask is not None else None,
        mask=WHOLE_MARK if mask is None else mask,
        goto=goto,
    )


def parse_foreign_rule(body: bytes) -> ForeignRule | None:
    """Read an RTM_NEWRULE message of whatever rule; None for those of multicast routing, and for unknown actions."""
    family, dst_length, src_length, tos, table, action, flags = _RULE.unpack_from(body)
    attributes = parse_attributes(body, _RULE.size)
    if family not in tuple(Family) or action not in tuple(RuleAction):
        return None
    suppressed = attributes.get(_FRA_SUPPRESS_PREFIXLEN, _NO_SUPPRESSION)
    iif = attributes.get(_FRA_IIFNAME)
    return ForeignRule(
        family=Family(family),
        priority=parse_u32(attributes[_FRA_PRIORITY]) if _FRA_PRIORITY in attributes else 0,
        action=RuleAction(action),
        protocol=parse_u8(attributes[_FRA_PROTOCOL]) if _FRA_PROTOCOL in attributes else 0,
        table=parse_u32(attributes[_FRA_TABLE]) if _FRA_TABLE in attributes else table,
        goto=parse_u32(attributes[_FRA_GOTO]) if _FRA_GOTO in attributes else 0,
        source=_network(attributes[_FRA_SRC], src_length) if src_length else None,
        destination=_network(attributes[_FRA_DST], dst_length) if dst_length else None,
        iif=LinkName(parse_text(iif)) if iif is not None else None,
        mark=parse_u32(attributes[_FRA_FWMARK]) if _FRA_FWMARK in attributes else None,
        inverted=bool(flags & _FIB_RULE_INVERT),
        local=bool(attributes.keys() & _LOCAL) or not _is_for_root(attributes.get(_FRA_UID_RANGE)),
        narrowed=bool(tos or attributes.keys() - _UNDERSTOOD - _LOCAL - {_FRA_UID_RANGE}),
        suppressed=parse_s32(suppressed),
    )


def _is_for_root(uids: bytes | None) -> bool:
    """Packets that are only forwarded count as root's (ip_route_input_slow in net/ipv4/route.c)."""
    return uids is None or parse_u32(uids[:4]) == 0


def read_foreign_rules(connection: Connection) -> list[ForeignRule]:
    """The rules of both families, whoever made them."""
    rules = (parse_foreign_rule(body) for family in Family for body in connection.dump(dump_rules(family)))
    return [rule for rule in rules if rule is not None]


def _network(packed: bytes, length: int) -> IPNetwork:
    return ip_network((packed, length))


_ATTEMPTS: Final = 4


def read_rules(connection: Connection) -> list[Rule]:
    """The rules of both families in the kernel's order, but for those that select by what `Rule` does not know."""
    rules = (parse_rule(body) for family in Family for body in connection.dump(dump_rules(family)))
    return [rule for rule in rules if rule is not None]


def ensure_rules(rules: Collection[Rule], connection: Connection) -> RuleChanges:
    """Make every rule exist once, and no other of the same protocols that is for every packet."""
    actual = [rule for rule in read_rules(connection) if not rule.selects]
    return _apply(diff_rules(actual, rules), new_rule, connection)


def delete_rules(rules: Collection[Rule], connection: Connection) -> None:
    """Delete these rules. Idempotent. Raises NetlinkError for the first that the kernel refused, after having
    tried the others.
    """
    _apply(RuleChanges(adds=(), deletes=tuple(rules)), append_rule, connection)


def sync_rules(wanted: Collection[Rule], *, claim: RuleClaim, connection: Connection) -> RuleChanges:
    """Make `wanted` the rules of the claim, each there once, and leave all others alone. Idempotent.

    What comes is there before what goes. Returns all that was done. Raises NetlinkError for the first rule that the
    kernel refused, ValueError where a wanted one is not of the claim.
    """
    # Once is enough, except where the kernel deleted another rule than it was asked to: it takes the first that has
    # what the request names, even if that has selectors besides. Then that one is put back.
    adds: tuple[Rule, ...] = ()
    deletes: tuple[Rule, ...] = ()
    for _ in range(_ATTEMPTS):
        changes = _apply(diff_claimed_rules(read_rules(connection), wanted, claim), append_rule, connection)
        adds, deletes = adds + changes.adds, deletes + changes.deletes
        if not changes.deletes:
            return RuleChanges(adds=adds, deletes=deletes)
    raise NetlinkError(f"rules would not settle: somebody else changes them, {deletes[-1]} among them")


def _apply(changes: RuleChanges, add: Callable[[Rule], Request], connection: Connection) -> RuleChanges:
    # A kernel without a family has no packets of it to look up.
    adds = [add(rule) for rule in changes.adds]
    errors = connection.submit(adds, tolerate={errno.EEXIST, errno.EAFNOSUPPORT})
    deletes = [delete_rule(rule) for rule in changes.deletes]
    errors += connection.submit(deletes, tolerate={errno.ENOENT})
    for error in errors:
        raise error
    return changes
