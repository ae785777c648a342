"""What a node's journal says after everything: that of no pod is anything left."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from coild.eni.eni_ipam import read_boot
from coild.eni.journal import EniJournal
from coild.model.journal_file import JournalFile
from integration.aws.node import EniNode


def find_journal_faults(node: EniNode, *, cooldown: float) -> Iterator[str]:
    """What the next coild would have to deal with, though there are no pods, and EC2 has nothing left to be dealt with.

    This one has ended.
    """
    with TemporaryDirectory() as folder:
        # A journal that is read is rewritten.
        copy = shutil.copy(node.journal, folder)
        log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
        file = JournalFile(Path(copy), log=log)
        journal = EniJournal(file, cooldown=cooldown, boot=read_boot())
        try:
            # With no pod in the kernel, an address that was held, too, begins to cool down now.
            left = journal.resume({})
            checkpoint = journal.checkpoint
            if not file.intact:
                yield f"{node.name}: the journal is damaged"
            if left:
                yield f"{node.name}: the journal has {sorted(map(str, left))} held or cooling down"
            if journal.creation is not None:
                yield f"{node.name}: the journal has the creation of an interface that was never settled"
            known = checkpoint.interfaces if checkpoint is not None else ()
            noted = {network for each in known for network in each.interface.ranges}
            assigned = {address for each in node.instance.interfaces for address in each.addresses[1:]}
            if {network[0] for network in noted} != assigned:
                yield f"{node.name}: the journal has the addresses {sorted(map(str, noted))}"
        finally:
            journal.close()
