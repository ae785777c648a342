"""A table made what is wanted, or taken away. Runs in a worker's thread, in the namespace of the table.

sync_table(wanted) -> bool           True if anything was different; what is in its sets is `coil.nft.element_sync`'s
delete_table(name) -> bool           True if it was there
read_counters(name) -> dict          every counter of the table, by name
"""

from dataclasses import dataclass
from typing import Any

from coil.kernel.nft_table import NftTable, TableFamily
from coil.nft.difference import plan_commands
from coil.nft.library import run
from coil.nft.netfilter import dump_counters, has_table


@dataclass(frozen=True, slots=True)
class CounterValue:
    packets: int
    bytes: int


def sync_table(wanted: NftTable) -> bool:
    """Make the table what is wanted, in one transaction; returns whether it was not. Idempotent: what is right is not
    touched, counters keep their figures and sets their elements.

    Raises NftError, and then the table is what it was.
    """
    commands = plan_commands(list_table(wanted.family, wanted.name, terse=True), wanted)
    if commands:
        run(commands, doing=f"write {wanted}")
    return bool(commands)


def delete_table(name: str, family: TableFamily = TableFamily.INET) -> bool:
    """Delete the table with all that is in it; returns whether it was there. Idempotent. Raises NftError."""
    if not has_table(family, name, doing=f"look for table {family.value} {name}"):
        return False
    run([{"delete": _table(family, name)}], doing=f"delete table {family.value} {name}")
    return True


def read_counters(name: str) -> dict[str, CounterValue]:
    """The counters of the inet table, by name, at a cost that does not depend on what else is in it. Raises NftError,
    also where there is no such table.
    """
    counters = dump_counters(name, doing=f"read the counters of table inet {name}")
    return {counter: CounterValue(packets, size) for counter, packets, size in counters}


def list_table(family: TableFamily, name: str, *, terse: bool) -> list[dict[str, Any]]:
    """The objects of the table, none if it does not exist; `terse`: sets without their elements. Raises NftError."""
    # Asked for by name, the library calls a table that does not exist an error like any other.
    if not has_table(family, name, doing=f"look for table {family.value} {name}"):
        return []
    objects = run([{"list": _table(family, name)}], doing=f"list table {family.value} {name}", terse=terse)
    return [entry for entry in objects if "metainfo" not in entry]


def _table(family: TableFamily, name: str) -> dict[str, Any]:
    return {"table": {"family": family.value, "name": name}}
