"""Tables that this process keeps what they should be. Runs in a worker's thread, in the namespace of the tables.

The first time the library reads what is there. From then on it is told what to write, and reads nothing that is long:
where something changes the namespace's tables often, it would not come to an end (`coil.nft.netfilter_dump`). So load
for the first time before anything does.

Invariant: the models are of tables that were right when they were read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName, diff_elements
from coil.kernel.nft_table import NftTable
from coil.nft.difference import plan_commands
from coil.nft.element_sync import load_elements, plan_changes, ranged_sets, staying_sets
from coil.nft.element_wire import decode_elements
from coil.nft.library import run
from coil.nft.netfilter_dump import dump_elements, read_generation
from coil.nft.table_image import TableImage, describe_image, read_image

_ATTEMPTS: Final = 4

_Contents = dict[SetName, dict[ElementKey, ElementValue]]


class KeptTables:
    """A transaction is carried out within `transaction`, which is told how many elements change; `split` makes several
    of one that changes elements only. For one thread at a time.
    """

    def __init__(
        self,
        tables: Sequence[NftTable],
        *,
        transaction: Callable[[int], AbstractContextManager[None]],
        split: Callable[[ElementChanges], Iterable[ElementChanges]],
    ) -> None:
        self._tables = tables
        self._transaction = transaction
        self._split = split
        self._models: list[TableImage] | None = None
        self._ranged = ranged_sets(tables)
        self._sets = {SetName(table.family, table.name, entry.name): entry for table in tables for entry in table.sets}

    def load(self, elements: Elements) -> bool:
        """Make the tables what is wanted, with those elements and no others; returns whether they were not. Idempotent:
        what is right is not touched.

        Blocks in proportion to the elements. Raises NftError, and then a part of the elements may have changed.
        """
        if self._models is None:
            return self._load_first(elements)
        listings: list[list[dict[str, Any]]] = []
        staying: list[SetName] = []
        right = True
        for table, model in zip(self._tables, self._models, strict=True):
            image = read_image(table)
            listings.append(describe_image(image, model, table))
            needed = plan_commands(listings[-1], table)
            right &= not needed
            if image is not None:
                staying += (name for name in staying_sets(table, needed) if name.name in image.sets)
        changes = self._differences(staying, elements)
        for step in self._split(changes) if right else [changes]:
            self._run(plan_changes(self._tables, listings, step), len(step))
        return bool(changes) or not right

    def _load_first(self, elements: Elements) -> bool:
        different = False
        for _ in range(_ATTEMPTS):
            before, generation = self._images(), read_generation(doing="look at the tables")
            wrote = load_elements(self._tables, elements, transaction=self._transaction)
            different |= wrote
            after = self._images()
            # Otherwise somebody else may have changed them, between what made them right and the look at them.
            alone = read_generation(doing="look at the tables") == generation + wrote
            models = [image for image in after if image is not None]
            if len(models) == len(self._tables) and (alone or (not wrote and before == after)):
                self._models = models
                break
        return different

    def _images(self) -> list[TableImage | None]:
        return [read_image(table) for table in self._tables]

    def _differences(self, names: Iterable[SetName], wanted: Elements) -> ElementChanges:
        """From what is in those sets, and nothing in the others, to what is wanted."""
        actual = self._read(names)
        changes = diff_elements(actual, wanted, ranged=self._ranged)
        # A set that has just grown is believed only the second time.
        doubtful = [
            name for name in actual if any(name in part for part in (changes.deletes, changes.adds, changes.anew))
        ]
        return diff_elements(actual | self._read(doubtful), wanted, ranged=self._ranged) if doubtful else changes

    def _read(self, names: Iterable[SetName]) -> _Contents:
        return {
            name: decode_elements(self._sets[name], _pieces(name)) for name in names if not self._sets[name].timeouts
        }

    def _run(self, commands: list[dict[str, Any]], elements: int) -> None:
        if commands:
            with self._transaction(elements):
                run(commands, doing=f"mend {' and '.join(map(str, self._tables))}")


def _pieces(name: SetName) -> Iterator[bytes]:
    return dump_elements(name.family, name.table, name.name, doing=f"read {name}")
