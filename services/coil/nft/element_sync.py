"""What is in the sets and maps of tables. Runs in a worker's thread, in the namespace of the tables.

TableReconciler                              tables that this process keeps what they should be, again and again
load_elements(tables, elements) -> bool      tables and elements made what is wanted, as libnftables lists them
read_elements(table) -> Elements             what is in its sets
change_elements(tables, changes)             one transaction
refresh_timeouts(timeouts, milliseconds)     one transaction

Two tables may change in one transaction. Sets whose elements expire belong to `refresh_timeouts` alone: the others
leave what is in them as it is.

Elements are read and written without libnftables, which takes several times as long for them and reads whole sets
before it changes one element. It is left the tables themselves, and sets that are not `is_writable`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, Final, TypeAlias

from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName, diff_elements
from coil.kernel.nft_table import NftSet, NftTable
from coil.nft.difference import plan_commands
from coil.nft.element_codec import decode_elements, encode_elements, is_writable
from coil.nft.netfilter import (
    Message,
    NetfilterSocket,
    add_elements,
    add_expiring,
    delete_elements,
    dump_elements,
    flush_set,
    read_generation,
)
from coil.nft.rendering import render_changes, render_whole
from coil.nft.table_image import TableImage, describe_image, read_image
from coil.nft.table_sync import list_table, run

Transaction: TypeAlias = Callable[[int], AbstractContextManager[None]]
"""What a transaction is carried out within; told how many elements change."""
Split: TypeAlias = Callable[[ElementChanges, Mapping[SetName, int]], Iterable[ElementChanges]]
"""Makes several transactions of one that changes elements only; told how many elements the sets have before."""
Listing: TypeAlias = Sequence[dict[str, Any]]
"""The objects of a table, as libnftables lists them; none if it is not there."""
Timeouts: TypeAlias = Collection[tuple[SetName, tuple[str, ...]]]
"""Sets whose elements expire, each with all the elements that it is to have."""

_ATTEMPTS: Final = 4
"""How often tables are loaded until nobody else changes them between what made them right and the look at them."""

_KEYS: Final = {"ipv4": b"\x02", "ipv6": b"\x0a", "request": b"\0\x01", "reply": b"\0\x02"}
"""Families and ARP operations, as the kernel has them (linux/netfilter.h, linux/if_arp.h)."""


def _alone(_changes: int) -> AbstractContextManager[None]:
    return nullcontext()


def _whole(changes: ElementChanges, _sizes: Mapping[SetName, int]) -> Iterable[ElementChanges]:
    return [changes] if changes else []


def load_elements(
    tables: Sequence[NftTable],
    elements: Elements,
    *,
    transaction: Transaction = _alone,
    split: Split = _whole,
    connection: NetfilterSocket | None = None,
) -> bool:
    """Make the tables what is wanted, with those elements and no others; returns whether they were not. Idempotent:
    what is right is not touched, so the same call takes over what an earlier process has left, and mends what something
    else has done.

    Where a table is there and not right, all of it is one transaction: no packet meets a table that is half of it, or
    one without its elements. Where none is there, what is looked up comes before what leads to it, if `split` is so.

    Blocks in proportion to the elements, wanted or there. Raises NftError, and then a part of the steps may have been
    carried out.
    """
    listings = [list_table(table.family, table.name, terse=True) for table in tables]
    return write_tables(tables, listings, elements, transaction=transaction, split=split, connection=connection)


def write_tables(
    tables: Sequence[NftTable],
    listings: Sequence[Listing],
    elements: Elements,
    *,
    transaction: Transaction,
    split: Split,
    connection: NetfilterSocket | None,
) -> bool:
    """As `load_elements`, of tables that have just been listed, without elements."""
    commands: list[dict[str, Any]] = []
    staying: dict[SetName, NftSet] = {}
    for table, listed in zip(tables, listings, strict=True):
        needed = plan_commands(listed, table)
        commands += needed
        staying |= _staying_sets(table, listed, needed)
    ranged = _ranged(_sets(tables))
    changes = _differences(staying, elements, ranged=ranged)
    if commands and any(listings):
        with transaction(len(changes)):
            run(_plan_changes(tables, listings, changes, ranged=ranged), doing=f"load {' and '.join(map(str, tables))}")
        return True
    if commands:
        with transaction(0):
            run(commands, doing=f"load {' and '.join(map(str, tables))}")
    sizes = {name: len(elements.get(name, ())) + len(keys) for name, keys in changes.deletes.items()}
    for step in split(changes, sizes):
        with transaction(len(step)):
            change_elements(tables, step, connection)
    return bool(commands or changes)


def change_elements(
    tables: Sequence[NftTable], changes: ElementChanges, connection: NetfilterSocket | None = None
) -> None:
    """Carry out the changes in one transaction, in tables that are what they should be; over `connection` if the caller
    keeps one. Not idempotent: what is to be deleted must be there, and what is to be added must not be there with
    another value.

    Blocks for some milliseconds per thousand elements. Raises NftError, and then nothing has changed; as something else
    may have changed the tables, `load_elements` is the way on.
    """
    if not changes:
        return
    doing = f"change {len(changes)} elements"
    sets = _sets(tables)
    if not changes.anew and all(is_writable(sets[name]) for name in (*changes.deletes, *changes.adds)):
        with closing(NetfilterSocket()) if connection is None else nullcontext(connection) as used:
            used.transact(list(_messages(sets, changes)), doing=doing)
        return
    touched = [table for table in tables if any(_is_of(name, table) for name in changes.anew)]
    listings = [render_whole(table) for table in touched]
    run(_plan_changes(touched, listings, changes, ranged=_ranged(sets)), doing=doing)


def refresh_timeouts(timeouts: Timeouts, milliseconds: int, connection: NetfilterSocket | None = None) -> None:
    """Have the sets hold these elements for so long from now on, whether or not they were there; 0: not at all.

    One transaction, which waits for no other call of this room, over `connection` if the caller keeps one. Raises
    NftError, and then what was there expires as it would have.
    """
    messages: list[Message] = []
    for name, words in timeouts:
        messages.append(flush_set(name.family, name.table, name.name))
        if milliseconds > 0:
            keys = [_KEYS[word] for word in words]
            messages.append(add_expiring(name.family, name.table, name.name, keys=keys, milliseconds=milliseconds))
    tables = " and ".join(sorted({f"table {name.family.value} {name.table}" for name, _ in timeouts}, reverse=True))
    with closing(NetfilterSocket()) if connection is None else nullcontext(connection) as used:
        used.transact(messages, doing=f"refresh what expires in {tables}")


def read_elements(table: NftTable) -> Elements | None:
    """What is in the sets of the table of that name, as far as they are there and do not expire; None if there is no
    such table. Without libnftables. Raises NftError.
    """
    image = read_image(table)
    if image is None:
        return None
    return _read({name: entry for name, entry in _sets([table]).items() if entry.name in image.sets})


class TableReconciler:
    """Tables that this process keeps what they should be. For one thread at a time; `close` ends the connection that it
    keeps to the kernel.

    The first time libnftables lists what is there. From then on it is told what to write and lists nothing: where
    something changes the namespace's tables often, a long listing would never end (`coil.nft.netfilter`). So load for
    the first time before anything does. Invariant: the models are of tables that were right when they were read.
    """

    def __init__(self, tables: Sequence[NftTable], *, transaction: Transaction = _alone, split: Split = _whole) -> None:
        self._tables = tables
        self._transaction = transaction
        self._split = split
        self._connection = NetfilterSocket()
        self._models: list[TableImage] | None = None
        self._sizes: Counter[SetName] = Counter()

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def load(self, elements: Elements) -> bool:
        """Make the tables what is wanted, with those elements and no others; returns whether they were not
        (`coil.nft.element_sync.load_elements`).
        """
        self._sizes = Counter({name: len(words) for name, words in elements.items()})
        if self._models is None:
            return self._load_first(elements)
        listings = [
            describe_image(read_image(table), model, table)
            for table, model in zip(self._tables, self._models, strict=True)
        ]
        return write_tables(
            self._tables,
            listings,
            elements,
            transaction=self._transaction,
            split=self._split,
            connection=self._connection,
        )

    def split(self, changes: ElementChanges) -> list[ElementChanges]:
        """The transactions for `change`."""
        return list(self._split(changes, self._sizes))

    def change(self, changes: ElementChanges) -> None:
        """One transaction (`coil.nft.element_sync.change_elements`)."""
        with self._transaction(len(changes)):
            change_elements(self._tables, changes, self._connection)
        self._sizes.update({name: len(words) for name, words in changes.adds.items()})
        self._sizes.subtract({name: len(keys) for name, keys in changes.deletes.items()})

    def _load_first(self, elements: Elements) -> bool:
        different = False
        for _ in range(_ATTEMPTS):
            before, generation = self._images(), read_generation(doing="look at the tables")
            wrote = load_elements(
                self._tables, elements, transaction=self._transaction, split=self._split, connection=self._connection
            )
            different |= wrote
            after = self._images()
            # Otherwise somebody else may have changed them, between what made them right and the look at them.
            alone = read_generation(doing="look at the tables") == generation
            models = [image for image in after if image is not None]
            if not wrote and len(models) == len(self._tables) and (alone or before == after):
                self._models = models
                break
        return different

    def _images(self) -> list[TableImage | None]:
        return [read_image(table) for table in self._tables]


def _messages(sets: dict[SetName, NftSet], changes: ElementChanges) -> Iterator[Message]:
    for name, keys in changes.deletes.items():
        elements = encode_elements(sets[name], ((key, None) for key in keys))
        yield from delete_elements(name.family, name.table, name.name, elements)
    for name, words in changes.adds.items():
        elements = encode_elements(sets[name], words.items())
        yield from add_elements(name.family, name.table, name.name, elements)


def _plan_changes(
    tables: Sequence[NftTable], listings: Sequence[Listing], changes: ElementChanges, *, ranged: Collection[SetName]
) -> list[dict[str, Any]]:
    """The commands of one transaction that makes the tables what is wanted, and changes the elements of all. To make a
    set anew, all rules of its table are written again, as the kernel keeps a set for as long as one names it.
    """
    commands: list[dict[str, Any]] = []
    for table, listed in zip(tables, listings, strict=True):
        commands += plan_commands(listed, table, renew={name.name for name in changes.anew if _is_of(name, table)})
    return [*commands, *render_changes(changes, ranged=ranged)]


def _differences(sets: dict[SetName, NftSet], wanted: Elements, *, ranged: Collection[SetName]) -> ElementChanges:
    """From what is in those sets, and nothing in the others, to what is wanted."""
    actual = _read(sets)
    changes = diff_elements(actual, wanted, ranged=ranged)
    # A set that has just grown is believed only the second time.
    different = {*changes.deletes, *changes.adds, *changes.anew}
    doubtful = {name: entry for name, entry in sets.items() if name in different}
    return diff_elements(actual | _read(doubtful), wanted, ranged=ranged) if doubtful else changes


def _read(sets: dict[SetName, NftSet]) -> dict[SetName, dict[ElementKey, ElementValue]]:
    return {
        name: decode_elements(entry, dump_elements(name.family, name.table, name.name, doing=f"read {name}"))
        for name, entry in sets.items()
        if not entry.timeouts
    }


def _staying_sets(table: NftTable, listed: Listing, commands: Iterable[dict[str, Any]]) -> dict[SetName, NftSet]:
    """The sets of the table that are there and that the commands do not delete: of one that goes, or comes anew,
    nothing is left.
    """
    there = {entry[kind]["name"] for entry in listed for kind in ("set", "map") if kind in entry}
    there -= {
        command["delete"][kind]["name"]
        for command in commands
        for kind in ("set", "map")
        if kind in command.get("delete", {})
    }
    return {name: entry for name, entry in _sets([table]).items() if name.name in there}


def _sets(tables: Iterable[NftTable]) -> dict[SetName, NftSet]:
    return {SetName(table.family, table.name, entry.name): entry for table in tables for entry in table.sets}


def _ranged(sets: Mapping[SetName, NftSet]) -> frozenset[SetName]:
    return frozenset(name for name, entry in sets.items() if entry.intervals)


def _is_of(name: SetName, table: NftTable) -> bool:
    return (name.family, name.table) == (table.family, table.name)
