"""A table made what is wanted, or taken away, by libnftables. Runs in a worker's thread, in the namespace of the table.

sync_table(wanted) -> bool           True if anything was different; what is in its sets is `coil.nft.element_sync`'s
delete_table(name) -> bool           True if it was there
read_counters(name) -> dict          every counter of the table, by name
run(commands) -> list                one transaction with libnftables, in JSON

A context of the library is bound to the namespace that the thread was in when it was made, so each command has its own
(0.3 ms). The library keeps a list of links for the whole process (its iface.c), so commands take turns under a lock.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from coil.kernel.nft_table import NftTable, TableFamily
from coil.nft.difference import plan_commands
from coil.nft.netfilter import NftError, dump_counters, has_table
from coil.nft.versions import EXAMPLES_SINCE, read_listing, read_version, split_texts, with_examples

Command: TypeAlias = Mapping[str, Any]
"""One object of libnftables-json(5): `{"add": {"table": {…}}}`."""

_library_lock: Final = threading.Lock()


class _Library:
    """What is known of the library of this process."""

    version: tuple[int, ...] = ()
    """Empty until it has answered."""


def run(commands: Sequence[Command], *, doing: str, terse: bool = False) -> list[dict[str, Any]]:
    """Carry out the commands as one transaction; the objects of the answer, of which there are some after a `list`.
    `terse` lists sets without their elements. Sets that JSON has no words for (`split_texts`) are made before it.

    Blocks for a few milliseconds, and for some more per thousand elements. Raises NftError, which says that it happened
    while `doing`, and then nothing has changed; also where the library is missing.
    """
    with _library_lock:
        library = _open(doing)
        library.set_terse_output(terse)
        library.set_json_output(True)
        if _version(library) >= EXAMPLES_SINCE:
            commands = with_examples(commands)
        # Not the binding's own `json_cmd`: it would keep every other thread waiting ten times as long, 0.15 s where
        # there are 100 000 elements.
        texts, commands = split_texts(commands)
        code, output, error = library.cmd("; ".join(texts)) if texts else (0, "", "")
        if code == 0 and commands:
            code, output, error = library.cmd(_encode(commands))
    if code != 0:
        raise NftError(doing=doing, reason=" ".join(error.split()) or "libnftables gave no reason")
    return list(msgspec.json.decode(output)["nftables"]) if output else []


def _version(library: Any) -> tuple[int, ...]:
    """The version of the library, empty where the kernel does not let it answer: then it does not carry out commands
    either.
    """
    if not _Library.version:
        code, output, _ = library.cmd(_encode([{"list": {"tables": None}}]))
        if code == 0:
            _Library.version = read_version(msgspec.json.decode(output)["nftables"])
    return _Library.version


def _encode(commands: Sequence[Command]) -> str:
    return msgspec.json.encode({"nftables": commands}).decode()


def _open(doing: str) -> Any:
    # Not before it is needed: most processes that could use it never do (1 MB, 6 ms).
    try:
        import nftables
    except ImportError as error:
        raise NftError(doing=doing, reason=f"the Python package pip-nftables is missing ({error})") from error
    try:
        return nftables.Nftables()
    except OSError as error:
        raise NftError(doing=doing, reason=f"the library libnftables.so.1 is missing ({error})") from error


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
    return read_listing([entry for entry in objects if "metainfo" not in entry])


def _table(family: TableFamily, name: str) -> dict[str, Any]:
    return {"table": {"family": family.value, "name": name}}
