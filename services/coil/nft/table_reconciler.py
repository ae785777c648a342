"""Tables that this process keeps what they should be. Runs in a worker's thread, in the namespace of the tables.

The first time the library lists what is there. From then on it is told what to write, and lists nothing: where
something changes the namespace's tables often, a long listing would not come to an end (`coil.nft.netfilter_dump`). So
load for the first time before anything does.

Invariant: the models are of tables that were right when they were read.
"""

from collections.abc import Sequence

from coil.kernel.nft_element import ElementChanges, Elements
from coil.kernel.nft_table import NftTable
from coil.nft.element_sync import Split, Transaction, change_elements, load_elements, write_tables
from coil.nft.netfilter_dump import read_generation
from coil.nft.netfilter_message import Line
from coil.nft.table_image import TableImage, describe_image, read_image

_ATTEMPTS = 4


class TableReconciler:
    """For one thread at a time. `close` ends the connection that it keeps to the kernel."""

    def __init__(self, tables: Sequence[NftTable], *, transaction: Transaction, split: Split) -> None:
        self._tables = tables
        self._transaction = transaction
        self._split = split
        self._line = Line()
        self._models: list[TableImage] | None = None

    def close(self) -> None:
        """Idempotent."""
        self._line.close()

    def load(self, elements: Elements) -> bool:
        """Make the tables what is wanted, with those elements and no others; returns whether they were not
        (`coil.nft.element_sync.load_elements`).
        """
        if self._models is None:
            return self._load_first(elements)
        listings = [
            describe_image(read_image(table), model, table)
            for table, model in zip(self._tables, self._models, strict=True)
        ]
        return write_tables(
            self._tables, listings, elements, transaction=self._transaction, split=self._split, line=self._line
        )

    def change(self, changes: ElementChanges) -> None:
        """One transaction (`coil.nft.element_sync.change_elements`)."""
        with self._transaction(len(changes)):
            change_elements(self._tables, changes, self._line)

    def _load_first(self, elements: Elements) -> bool:
        different = False
        for _ in range(_ATTEMPTS):
            before, generation = self._images(), read_generation(doing="look at the tables")
            wrote = load_elements(
                self._tables, elements, transaction=self._transaction, split=self._split, line=self._line
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
