"""A table made what is wanted, or taken away. Runs in a worker's thread, in the namespace of the table.

sync_table(wanted) -> bool           True if anything was different
delete_table(name) -> bool           True if it was there
read_counters(name) -> dict          every counter of the table, by name
"""

from dataclasses import dataclass
from typing import Any

from coil.kernel.nft_table import NftTable
from coil.nft.difference import plan_commands
from coil.nft.error import NftError
from coil.nft.library import run
from coil.nft.rendering import FAMILY


@dataclass(frozen=True, slots=True)
class CounterValue:
    packets: int
    bytes: int


def sync_table(wanted: NftTable) -> bool:
    """Make the table what is wanted, in one transaction; returns whether it was not. Idempotent: what is right is not
    touched, and counters keep their figures.

    Raises NftError, and then the table is what it was.
    """
    commands = plan_commands(_list(wanted.name), wanted)
    if commands:
        run(commands, doing=f"write {wanted}")
    return bool(commands)


def delete_table(name: str) -> bool:
    """Delete the table with all that is in it; returns whether it was there. Idempotent. Raises NftError."""
    if not _is_there(name):
        return False
    run([{"delete": _table(name)}], doing=f"delete table {FAMILY} {name}")
    return True


def read_counters(name: str) -> dict[str, CounterValue]:
    """The counters of the table, by name, at a cost of half a millisecond for a table of ours. Raises NftError, also
    where there is no such table.
    """
    objects = _list(name)
    if not objects:
        raise NftError(doing=f"read the counters of table {FAMILY} {name}", reason="there is no such table")
    counters = (entry["counter"] for entry in objects if "counter" in entry)
    return {counter["name"]: CounterValue(counter["packets"], counter["bytes"]) for counter in counters}


def _list(name: str) -> list[dict[str, Any]]:
    """The objects of the table, none if it does not exist."""
    if not _is_there(name):
        return []
    objects = run([{"list": _table(name)}], doing=f"list table {FAMILY} {name}")
    return [entry for entry in objects if "metainfo" not in entry]


def _is_there(name: str) -> bool:
    # Asked for by name, a table that does not exist is an error like any other, told apart by its text alone.
    tables = run([{"list": {"tables": None}}], doing="list the tables")
    return any(entry.get("table", {}).items() >= _table(name)["table"].items() for entry in tables)


def _table(name: str) -> dict[str, Any]:
    return {"table": {"family": FAMILY, "name": name}}
