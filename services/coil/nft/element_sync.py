"""What is in the sets and maps of tables. Runs in a worker's thread, in the namespace of the tables.

load_elements(tables, elements) -> bool    tables and elements made what is wanted, in one transaction
change_elements(tables, changes)           one transaction
read_elements(tables) -> Elements          for a comparison
refresh_timeouts(fuses, milliseconds)      one transaction

Two tables may change in one transaction. Sets whose elements expire are `refresh_timeouts`' alone: the others leave
what is in them as it is.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, Final

from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName, diff_elements
from coil.kernel.nft_table import NftTable
from coil.nft.difference import plan_commands
from coil.nft.element_rendering import parse_elements, render_changes
from coil.nft.library import run
from coil.nft.netfilter_message import Line, Message, add_expiring, flush_set
from coil.nft.rendering import render_whole
from coil.nft.table_sync import list_table

_KEYS: Final = {"ipv4": b"\x02", "ipv6": b"\x0a", "request": b"\0\x01", "reply": b"\0\x02"}
"""Families and ARP operations, as the kernel has them (linux/netfilter.h, linux/if_arp.h)."""


def load_elements(
    tables: Sequence[NftTable],
    elements: Elements,
    *,
    transaction: Callable[[int], AbstractContextManager[None]] = lambda _changes: nullcontext(),
) -> bool:
    """Make the tables what is wanted, with those elements and no others; returns whether they were not.

    One transaction: no packet meets a table that is half of it, or one without its elements. What is right already is
    not touched, so the same call takes over what an earlier process has left, and mends what something else has done.
    The transaction, if there is any, is carried out within `transaction`, which is told how many elements change.

    Blocks in proportion to the elements, wanted or there. Raises NftError, and then everything is what it was.
    """
    listings = [list_table(table.family, table.name, terse=False) for table in tables]
    actual: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for table, listed in zip(tables, listings, strict=True):
        staying = staying_sets(table, plan_commands(listed, table))
        actual |= {name: found for name, found in parse_elements(listed).items() if name in staying}
    changes = diff_elements(actual, elements, ranged=ranged_sets(tables))
    commands = plan_changes(tables, listings, changes)
    if commands:
        with transaction(len(changes)):
            run(commands, doing=f"load {' and '.join(map(str, tables))}")
    return bool(commands)


def change_elements(tables: Sequence[NftTable], changes: ElementChanges) -> None:
    """Carry out the changes in one transaction, in tables that are what they should be. Not idempotent: what is to be
    deleted must be there, and what is to be added must not be there with another value.

    Blocks for a few milliseconds. Raises NftError, and then nothing has changed; as something else may have changed the
    tables, `load_elements` is the way on.
    """
    if changes:
        touched = [table for table in tables if any(is_of(name, table) for name in changes.anew)]
        commands = plan_changes(touched, [render_whole(table) for table in touched], changes)
        run(commands, doing=f"change {len(changes)} elements")


def plan_changes(
    tables: Sequence[NftTable], listings: Sequence[Sequence[dict[str, Any]]], changes: ElementChanges
) -> list[dict[str, Any]]:
    """The commands of one transaction that makes the tables what is wanted, and changes the elements of all. To make a
    set anew, all rules of its table are written again, as the kernel keeps a set for as long as one names it.
    """
    commands: list[dict[str, Any]] = []
    for table, listed in zip(tables, listings, strict=True):
        commands += plan_commands(listed, table, renew={name.name for name in changes.anew if is_of(name, table)})
    return [*commands, *render_changes(changes)]


def staying_sets(table: NftTable, commands: Iterable[dict[str, Any]]) -> set[SetName]:
    """The sets of the table but those that the commands delete: of one that goes, or comes anew, nothing is left."""
    going = {
        command["delete"][kind]["name"]
        for command in commands
        for kind in ("set", "map")
        if kind in command.get("delete", {})
    }
    return {SetName(table.family, table.name, entry.name) for entry in table.sets if entry.name not in going}


def ranged_sets(tables: Iterable[NftTable]) -> frozenset[SetName]:
    """Those with ranges."""
    return frozenset(
        SetName(table.family, table.name, entry.name) for table in tables for entry in table.sets if entry.intervals
    )


def is_of(name: SetName, table: NftTable) -> bool:
    """Whether the set is one of the table's."""
    return (name.family, name.table) == (table.family, table.name)


def read_elements(tables: Sequence[NftTable]) -> Elements:
    """What is in the sets of the tables now; sets that are not there are not in the answer. Raises NftError."""
    found: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for table in tables:
        found |= parse_elements(list_table(table.family, table.name, terse=False))
    return found


def refresh_timeouts(
    fuses: Collection[tuple[SetName, tuple[str, ...]]], milliseconds: int, line: Line | None = None
) -> None:
    """Have the sets hold these elements for so long from now on, whether or not they were there; 0: not at all.

    One transaction, which waits for no other call of this room, over `line` if the caller keeps one. Raises NftError,
    and then what was there expires as it would have.
    """
    messages: list[Message] = []
    for name, words in fuses:
        messages.append(flush_set(name.family, name.table, name.name))
        if milliseconds > 0:
            keys = [_KEYS[word] for word in words]
            messages.append(add_expiring(name.family, name.table, name.name, keys=keys, milliseconds=milliseconds))
    tables = " and ".join(sorted({f"table {name.family.value} {name.table}" for name, _ in fuses}, reverse=True))
    with closing(Line()) if line is None else nullcontext(line) as used:
        used.transact(messages, doing=f"refresh what expires in {tables}")
