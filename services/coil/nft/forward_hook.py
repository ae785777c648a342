"""The base chains of nf_tables at the hook for packets that are forwarded: nftables' own, and those of iptables-nft.

Read without libnftables, which reads all sets first (`coil.nft.netfilter`). Of the expressions in a rule those are
understood that compare links, addresses and the family; a rule with any other is left out.

Source: linux/netfilter/nf_tables.h (the numbers of attributes, expressions' keys and verdicts).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from ipaddress import ip_network
from typing import Final

from coil.kernel.family import Family, IPNetwork
from coil.kernel.nft_table import TableFamily
from coil.kernel.packet_filter import (
    AddressMatch,
    FilterMatch,
    FilterRule,
    FilterVerdict,
    ForwardHook,
    LinkMatch,
    Side,
    reach_chains,
)
from coil.nft.netfilter import Dump, attributes, converse, has_nftables, text

_FORWARD: Final = 2
"""NF_INET_FORWARD; the families below have the same hooks (linux/netfilter.h)."""
_FAMILIES: Final = {
    TableFamily.INET: frozenset(Family),
    TableFamily.IP: frozenset({Family.IPV4}),
    TableFamily.IP6: frozenset({Family.IPV6}),
}
_BY_NFPROTO: Final = {2: Family.IPV4, 10: Family.IPV6}
_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_TYPE = 1, 3, 4, 5, 7
_RULE_CHAIN, _RULE_EXPRESSIONS = 2, 4
_EQUAL, _UNEQUAL = 0, 1
_NETWORK_HEADER: Final = 1
_ADDRESSES: Final = {
    (Family.IPV4, 12): Side.FROM,
    (Family.IPV4, 16): Side.TO,
    (Family.IPV6, 8): Side.FROM,
    (Family.IPV6, 24): Side.TO,
}
"""Where they are in the header, RFC 791 and RFC 8200."""
_LENGTHS: Final = {Family.IPV4: 4, Family.IPV6: 16}
_LINKS: Final = {6: Side.FROM, 7: Side.TO}
_META_NFPROTO: Final = 15
_VERDICTS: Final = {
    0: FilterVerdict.DROP,
    1: FilterVerdict.ACCEPT,
    -1: FilterVerdict.CONTINUE,
    -2: FilterVerdict.CONTINUE,
    -3: FilterVerdict.JUMP,
    -4: FilterVerdict.GOTO,
    -5: FilterVerdict.RETURN,
}
_DOING: Final = "look at the chains for forwarded packets"


class _UnknownError(Exception):
    """The rule asks something that is not understood here."""


def read_forward_hooks() -> list[ForwardHook]:
    """Those of the calling thread's namespace; none where the kernel has no nf_tables. Raises NftError.

    What changes while it is read may be read half; who judges it looks again.
    """
    if not has_nftables():
        return []
    return [hook for family in _FAMILIES for hook in _read_hooks(family)]


def _read_hooks(family: TableFamily) -> Iterator[ForwardHook]:
    for chain in _dump(Dump.CHAINS, family):
        hook = dict(attributes(chain.get(_CHAIN_HOOK, b"")))
        if _number(hook.get(1, b"\xff")) != _FORWARD or _text(chain.get(_CHAIN_TYPE, b"")) != "filter":
            continue
        table, name = _text(chain[_TABLE]), _text(chain[_CHAIN_NAME])
        policy = _VERDICTS.get(_number(chain.get(_CHAIN_POLICY, b"\1")), FilterVerdict.ACCEPT)
        chains = reach_chains(name, partial(_read_rules, family, table))
        chains[name] = replace(chains[name], policy=policy)
        label = f"nftables chain {family} {table} {name}"
        yield ForwardHook(label=label, families=_FAMILIES[family], base=name, chains=chains)


def _read_rules(family: TableFamily, table: str, chain: str) -> tuple[FilterRule, ...]:
    found: list[FilterRule] = []
    for rule in _dump(Dump.RULES, family, text(_TABLE, table) + text(_RULE_CHAIN, chain)):
        if (_text(rule[_TABLE]), _text(rule[_RULE_CHAIN])) != (table, chain):
            continue  # a kernel that tells of all of them
        try:
            parsed = _Parser(family).parse(rule.get(_RULE_EXPRESSIONS, b""))
        except _UnknownError:
            continue
        if parsed is not None:
            found.append(parsed)
    return tuple(found)


def _dump(kind: Dump, family: TableFamily, body: bytes = b"") -> Iterator[dict[int, bytes]]:
    for answer, content, _ in converse(kind, family, body, doing=_DOING):
        if answer == kind - 1:
            yield dict(attributes(content))


class _Field(Enum):
    LINK = "link"
    ADDRESS = "address"
    FAMILY = "family"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a register holds: a field of the packet, and which of its bits are left."""

    field: _Field
    side: Side = Side.FROM
    mask: bytes | None = None


class _Parser:
    """One rule. Registers are loaded from the packet and compared, and in the end there is a verdict."""

    def __init__(self, family: TableFamily) -> None:
        families = _FAMILIES[family]
        self._family = next(iter(families)) if len(families) == 1 else None
        self._registers: dict[int, _Loaded] = {}
        self._matches: list[FilterMatch] = []

    def parse(self, expressions: bytes) -> FilterRule | None:
        """None for a rule that decides nothing. Raises _UnknownError."""
        for _, expression in attributes(expressions):
            parts = dict(attributes(expression))
            name, data = _text(parts[1]), dict(attributes(parts.get(2, b"")))
            if name == "immediate" and _number(data.get(1, b"\1")) == 0:
                return self._decide(dict(attributes(dict(attributes(data[2]))[2])))
            if name == "reject":
                return self._rule(FilterVerdict.DROP)
            if name == "target":
                return self._rule(FilterVerdict.DROP) if _text(data.get(1, b"")) == "REJECT" else None
            self._compare(name, data)
        return None

    def _decide(self, verdict: Mapping[int, bytes]) -> FilterRule | None:
        decision = _VERDICTS.get(_signed(verdict[1]), FilterVerdict.CONTINUE)
        return None if decision is FilterVerdict.CONTINUE else self._rule(decision, _text(verdict.get(2, b"")))

    def _rule(self, verdict: FilterVerdict, target: str = "") -> FilterRule:
        return FilterRule(matches=tuple(self._matches), family=self._family, verdict=verdict, target=target)

    def _compare(self, name: str, data: Mapping[int, bytes]) -> None:
        match name:
            case "counter" | "log":
                pass
            case "match" if _text(data.get(1, b"")) == "comment":
                pass
            case "meta" if 1 in data and _number(data[2]) == _META_NFPROTO:
                self._registers[_number(data[1])] = _Loaded(_Field.FAMILY)
            case "meta" if 1 in data and (side := _LINKS.get(_number(data[2]))) is not None:
                self._registers[_number(data[1])] = _Loaded(_Field.LINK, side)
            case "payload" if 1 in data and _number(data[2]) == _NETWORK_HEADER and self._family is not None:
                side = _ADDRESSES.get((self._family, _number(data[3])))
                if side is None or _number(data[4]) > _LENGTHS[self._family]:
                    raise _UnknownError
                self._registers[_number(data[1])] = _Loaded(_Field.ADDRESS, side)
            case "bitwise" if (loaded := self._registers.get(_number(data[1]))) is not None and 4 in data:
                if any(dict(attributes(data.get(5, b""))).get(1, b"")):
                    raise _UnknownError
                mask = dict(attributes(data[4]))[1]
                self._registers[_number(data[2])] = replace(loaded, mask=mask)
            case "cmp" if (loaded := self._registers.get(_number(data[1]))) is not None:
                operation = _number(data[2])
                if operation not in (_EQUAL, _UNEQUAL):
                    raise _UnknownError
                self._note(loaded, dict(attributes(data[3]))[1], negated=operation == _UNEQUAL)
            case _:
                raise _UnknownError

    def _note(self, loaded: _Loaded, value: bytes, *, negated: bool) -> None:
        if loaded.field is _Field.ADDRESS:
            self._matches.append(AddressMatch(loaded.side, self._network(loaded, value), negated=negated))
        elif loaded.mask is not None:
            raise _UnknownError
        elif loaded.field is _Field.LINK:
            name = value.split(b"\0", 1)[0].decode(errors="replace")
            # What is compared to its end has a zero byte; of a pattern there are only the bytes before the asterisk.
            is_prefix = b"\0" not in value
            self._matches.append(LinkMatch(loaded.side, name, is_prefix=is_prefix, negated=negated))
        elif negated or value[0] not in _BY_NFPROTO:
            raise _UnknownError
        else:
            self._family = _BY_NFPROTO[value[0]]

    def _network(self, loaded: _Loaded, value: bytes) -> IPNetwork:
        """`nft` compares the first bytes only where the prefix ends with one of them, and masks the others."""
        if self._family is None:
            raise _UnknownError
        size = _LENGTHS[self._family]
        mask = (loaded.mask or b"\xff" * len(value)).ljust(size, b"\0")
        bits = f"{int.from_bytes(mask, 'big'):0{8 * size}b}".rstrip("0")
        if "0" in bits:
            raise _UnknownError  # a mask with gaps
        address = value.ljust(size, b"\0")
        return ip_network((address, len(bits)), strict=False)


def _text(content: bytes) -> str:
    return content.rstrip(b"\0").decode(errors="replace")


def _number(content: bytes) -> int:
    return int.from_bytes(content, "big")


def _signed(content: bytes) -> int:
    return int.from_bytes(content, "big", signed=True)
