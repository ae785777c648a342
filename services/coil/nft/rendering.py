"""Tables as the JSON of libnftables, in the very form in which it lists them again (libnftables-json(5)). Pure.

Where a version of the library lists something in another form, tables merely look different from what is wanted and are
written anew.
"""

from collections.abc import Callable
from typing import Any, Final

from coil.kernel.nft_table import Assign, Count, Field, Match, NftChain, NftTable, Statement, Verdict

FAMILY: Final = "inet"


def render_table(table: NftTable) -> dict[str, Any]:
    """The object that names the table."""
    return {"table": {"family": FAMILY, "name": table.name}}


def render_counter(table: NftTable, counter: str) -> dict[str, Any]:
    """One of the table's counters."""
    return {"counter": {"family": FAMILY, "name": counter, "table": table.name}}


def render_chain(table: NftTable, chain: NftChain) -> dict[str, Any]:
    """One of the table's chains, without its rules."""
    return {
        "chain": {
            "family": FAMILY,
            "table": table.name,
            "name": chain.name,
            "type": chain.type.value,
            "hook": chain.hook.value,
            "prio": chain.priority.value,
            "policy": "accept",
        }
    }


def render_rules(table: NftTable, chain: NftChain) -> list[dict[str, Any]]:
    """The chain's rules in their order."""
    return [
        {
            "rule": {
                "family": FAMILY,
                "table": table.name,
                "chain": chain.name,
                "expr": [_render_statement(statement) for statement in rule],
            }
        }
        for rule in chain.rules
    ]


def _render_statement(statement: Statement) -> dict[str, Any]:
    match statement:
        case Match(field, comparison, value):
            return {"match": {"op": comparison.value, "left": _render_field(field), "right": value}}
        case Assign(field, Field() as source):
            return {"mangle": {"key": _render_field(field), "value": _render_field(source)}}
        case Assign(field, value):
            return {"mangle": {"key": _render_field(field), "value": value}}
        case Count(counter):
            return {"counter": counter}
        case Verdict():
            return {statement.value: None}


def _render_field(field: Field) -> dict[str, Any]:
    what, key = field.value.split()
    return _FIELDS[what](key)


_FIELDS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "meta": lambda key: {"meta": {"key": key}},
    "ct": lambda key: {"ct": {"key": key}},
    "ip": lambda key: {"payload": {"protocol": "ip", "field": key}},
    "ip6": lambda key: {"payload": {"protocol": "ip6", "field": key}},
}
