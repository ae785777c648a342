"""Tables and elements as the JSON of libnftables, tables in the very form in which it lists them (libnftables-json(5)).
Pure.

What is known of versions that list something in another form is in `coil.nft.versions`. Where another one does, tables
merely look different from what is wanted and are written anew.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Any, Final

from coil.kernel.family import Family, IPNetwork
from coil.kernel.nft_element import ElementChanges, ElementKey, ElementValue, SetName
from coil.kernel.nft_table import (
    Assign,
    ClampSegments,
    Count,
    DestinationNat,
    Field,
    Goto,
    HasBits,
    Jump,
    Key,
    LeadingBits,
    Lookup,
    MaskedField,
    Match,
    Member,
    NftChain,
    NftSet,
    NftTable,
    NoTrack,
    NumberRange,
    PortChoice,
    RegularChain,
    Remember,
    SetBits,
    SourceNat,
    Statement,
    TransportBits,
    Verdict,
)

_IN_ONE_COMMAND = 500
"""Elements in one command at most: a transaction has as many commands as it needs. In an element at which a message to
the kernel is full (64 KB, some 700 of IPv6), libnftables 1.0.6 turns the bytes of a class twice, so that another class
has it. And its time for a command grows faster than its elements.
"""


def render_whole(table: NftTable) -> list[dict[str, Any]]:
    """All objects of the table, as if it were listed."""
    return [
        render_table(table),
        *(render_counter(table, counter) for counter in table.counters),
        *(render_set(table, entry) for entry in table.sets),
        *(render_chain(table, chain) for chain in table.chains),
        *(rule for chain in table.chains for rule in render_rules(table, chain)),
    ]


def render_table(table: NftTable) -> dict[str, Any]:
    """The object that names the table."""
    return {"table": {"family": table.family.value, "name": table.name}}


def render_counter(table: NftTable, counter: str) -> dict[str, Any]:
    """One of the table's counters."""
    return {"counter": {"family": table.family.value, "name": counter, "table": table.name}}


def render_set(table: NftTable, wanted: NftSet) -> dict[str, Any]:
    """One of the table's sets or maps, without its elements."""
    types = [part.value for part in wanted.key]
    flags = [flag for flag, is_set in (("interval", wanted.intervals), ("timeout", wanted.timeouts)) if is_set]
    return {
        "set" if wanted.value is None else "map": {
            "family": table.family.value,
            "name": wanted.name,
            "table": table.name,
            "type": types if len(types) > 1 else types[0],
            **({} if wanted.value is None else {"map": wanted.value.value}),
            **({"flags": flags} if flags else {}),
            **({} if wanted.size is None else {"size": wanted.size}),
        }
    }


def render_chain(table: NftTable, chain: NftChain | RegularChain) -> dict[str, Any]:
    """One of the table's chains, without its rules."""
    named = {"family": table.family.value, "table": table.name, "name": chain.name}
    if isinstance(chain, RegularChain):
        return {"chain": named}
    return {
        "chain": {
            **named,
            "type": chain.type.value,
            "hook": chain.hook.value,
            "prio": chain.priority.value,
            "policy": "accept",
        }
    }


def render_rules(table: NftTable, chain: NftChain | RegularChain) -> list[dict[str, Any]]:
    """The chain's rules in their order."""
    return [
        {
            "rule": {
                "family": table.family.value,
                "table": table.name,
                "chain": chain.name,
                "expr": [_render_statement(statement) for statement in rule],
            }
        }
        for rule in chain.rules
    ]


def _render_statement(statement: Statement) -> dict[str, Any]:  # noqa: PLR0911, PLR0912 (one line a statement)
    match statement:
        case Match():
            return _render_match(statement)
        case Assign(Field.PACKET_CLASS, int(number)):
            return {"mangle": {"key": _render_field(Field.PACKET_CLASS), "value": _render_class(number)}}
        case Assign(field, value):
            return {"mangle": {"key": _render_field(field), "value": _render_value(value)}}
        case SetBits(field, bits):
            return {"mangle": {"key": _render_field(field), "value": {"|": [_render_field(field), bits]}}}
        case SourceNat(family, address, ports):
            flags = {"flags": ports.value} if ports is not PortChoice.OWN else {}
            return {"snat": {"family": _PROTOCOLS[family], "addr": _render_value(address), **flags}}
        case DestinationNat(family, address, port):
            # Not both from one map: libnftables 1.0.6 crashes when it reads that.
            target = {"addr": _render_value(address), "port": _render_value(port)}
            return {"dnat": {"family": _PROTOCOLS[family], **target}}
        case ClampSegments():
            return {"mangle": {"key": {"tcp option": {"name": "maxseg", "field": "size"}}, "value": _ROUTE_MTU}}
        case NoTrack():
            return {"notrack": None}
        case Count(counter):
            return {"counter": counter}
        case Remember(key, name, seconds):
            element = {"elem": {"val": _render_key(key), "timeout": seconds}}
            return {"set": {"op": "update", "elem": element, "set": f"@{name}"}}
        case Jump(chain):
            return {"jump": {"target": chain}}
        case Goto(chain):
            return {"goto": {"target": chain}}
        case Verdict():
            return {statement.value: None}


def _render_match(match: Match) -> dict[str, Any]:
    field, value = match.field, match.value
    left = _render_bits(field) if isinstance(field, TransportBits) else _render_key(field)
    if isinstance(value, HasBits):
        render = _number_renderer(field)
        masked = {"&": [left, render(value.mask | value.bits)]}
        return {"match": {"op": match.comparison.value, "left": masked, "right": render(value.bits)}}
    return {"match": {"op": match.comparison.value, "left": left, "right": _render_operand(value)}}


def _render_operand(value: str | int | LeadingBits | NumberRange | IPNetwork | Member | tuple[str, ...]) -> Any:
    match value:
        case LeadingBits(number, length):
            return {"prefix": {"addr": number, "len": length}}
        case NumberRange(first, last):
            return {"range": [first, last]}
        case IPv4Network() | IPv6Network():
            address, length = str(value.network_address), value.prefixlen
            return address if length == value.max_prefixlen else {"prefix": {"addr": address, "len": length}}
        case Member(name):
            return f"@{name}"
        case tuple():
            return list(value)
    return value


def _render_value(value: int | IPv4Address | Field | Lookup) -> Any:
    match value:
        case IPv4Address():
            return str(value)
        case Field():
            return _render_field(value)
        case Lookup(key, name):
            return {"map": {"key": _render_key(key), "data": f"@{name}"}}
        case _:
            return value


def _render_key(key: Key) -> dict[str, Any]:
    if isinstance(key, tuple):
        return {"concat": [_render_part(part) for part in key]}
    return _render_part(key)


def _render_part(part: Field | MaskedField | TransportBits) -> dict[str, Any]:
    match part:
        case Field():
            return _render_field(part)
        case MaskedField():
            return _render_masked(part)
        case TransportBits():
            return _render_bits(part)


def _render_masked(masked: MaskedField) -> dict[str, Any]:
    render = _number_renderer(masked.field)
    # The library lists the bits that come in the place of others among those of the mask, too.
    rendered = {"&": [_render_field(masked.field), render(masked.mask | masked.bits)]}
    return {"|": [rendered, render(masked.bits)]} if masked.bits else rendered


def _number_renderer(field: object) -> Callable[[int], str | int]:
    return _render_class if field is Field.PACKET_CLASS else int


def _render_class(number: int) -> str:
    return f"{number >> 16:x}:{number & 0xFFFF:x}" if number else "none"


def _render_bits(bits: TransportBits) -> dict[str, Any]:
    return {"payload": {"base": "th", "offset": bits.offset, "len": bits.length}}


def _render_field(field: Field) -> dict[str, Any]:
    what, key = field.value.split(maxsplit=1)
    render = _FIELDS.get(what)
    return render(key) if render is not None else {"payload": {"protocol": what, "field": key}}


def _render_fib(key: str) -> dict[str, Any]:
    *flags, result = key.replace(" . ", " ").split()
    return {"fib": {"result": result, "flags": flags}}


_ROUTE_MTU: Final = {"rt": {"key": "mtu"}}
_PROTOCOLS: Final = {Family.IPV4: "ip", Family.IPV6: "ip6"}
_FIELDS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "meta": lambda key: {"meta": {"key": key}},
    "ct": lambda key: {"ct": {"key": key}},
    "fib": _render_fib,
}


def render_changes(changes: ElementChanges, *, ranged: Collection[SetName]) -> list[dict[str, Any]]:
    """The commands of one transaction. What is to be `anew` is there and empty by then. `ranged` are sets of ranges."""
    commands: list[dict[str, Any]] = []
    for name, keys in changes.deletes.items():
        commands += _commands("delete", name, [_render_element_key(key, name in ranged) for key in keys])
    for name, elements in (*changes.anew.items(), *changes.adds.items()):
        rendered = [_render_element(key, value, name in ranged) for key, value in elements.items()]
        commands += _commands("add", name, rendered)
    return commands


def _commands(verb: str, name: SetName, elements: Sequence[Any]) -> Iterable[dict[str, Any]]:
    for start in range(0, len(elements), _IN_ONE_COMMAND):
        part = list(elements[start : start + _IN_ONE_COMMAND])
        place = {"family": name.family.value, "table": name.table, "name": name.name}
        yield {verb: {"element": {**place, "elem": part}}}


def _render_element(key: ElementKey, value: ElementValue, is_ranged: bool) -> Any:
    if value is None:
        return _render_element_key(key, is_ranged)
    return [_render_element_key(key, is_ranged), value]


def _render_element_key(key: ElementKey, is_ranged: bool) -> Any:
    if isinstance(key, str):
        return _render_word(key)
    if not is_ranged:
        return {"concat": list(key)}
    *first, last = map(_render_word, key)
    # libnftables 1.0.6 does not find an element again whose words are all single ones: it turns the bytes of a class.
    return {"concat": [*first, {"range": [last, last]} if isinstance(last, str) else last]}


def _render_word(word: str) -> Any:
    address, slash, length = word.partition("/")
    if slash:
        return {"prefix": {"addr": address, "len": int(length)}}
    first, dash, last = word.partition("-")
    return {"range": [first, last]} if dash else word
