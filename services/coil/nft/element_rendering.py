"""Elements of sets and maps as the JSON of libnftables (libnftables-json(5)). Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from coil.kernel.nft_element import ElementChanges, ElementKey, ElementValue, SetName

_IN_ONE_COMMAND = 500
"""Elements in one command at most: a transaction has as many commands as it needs. In an element at which a message to
the kernel is full (64 KB, some 700 of IPv6), libnftables 1.0.6 turns the bytes of a class twice, so that another class
has it. And its time for a command grows faster than its elements.
"""


def render_changes(changes: ElementChanges) -> list[dict[str, Any]]:
    """The commands of one transaction. What is to be `anew` is there and empty by then."""
    commands: list[dict[str, Any]] = []
    for name, keys in changes.deletes.items():
        commands += _commands("delete", name, [_render_key(key) for key in keys])
    for name, elements in (*changes.anew.items(), *changes.adds.items()):
        commands += _commands("add", name, [_render_element(*element) for element in elements.items()])
    return commands


def _commands(verb: str, name: SetName, elements: Sequence[Any]) -> Iterable[dict[str, Any]]:
    for start in range(0, len(elements), _IN_ONE_COMMAND):
        part = list(elements[start : start + _IN_ONE_COMMAND])
        place = {"family": name.family.value, "table": name.table, "name": name.name}
        yield {verb: {"element": {**place, "elem": part}}}


def _render_element(key: ElementKey, value: ElementValue) -> Any:
    return _render_key(key) if value is None else [_render_key(key), value]


def _render_key(key: ElementKey) -> Any:
    if isinstance(key, str):
        return _render_word(key)
    *first, last = map(_render_word, key)
    # libnftables 1.0.6 does not find an element again whose words are all single ones: it turns the bytes of a class.
    return {"concat": [*first, {"range": [last, last]} if isinstance(last, str) else last]}


def _render_word(word: str) -> Any:
    address, slash, length = word.partition("/")
    if slash:
        return {"prefix": {"addr": address, "len": int(length)}}
    first, dash, last = word.partition("-")
    return {"range": [first, last]} if dash else word
