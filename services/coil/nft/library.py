"""libnftables: one command in JSON, in the namespace of the calling thread.

A context of the library is bound to the namespace that the thread was in when it was made, so each command has its own
(0.3 ms). The library keeps a list of links for the whole process (its iface.c), so commands take turns.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from coil.nft.netfilter import NftError

Command: TypeAlias = Mapping[str, Any]
"""One object of libnftables-json(5): `{"add": {"table": {…}}}`."""

_turn: Final = threading.Lock()


def run(commands: Sequence[Command], *, doing: str, terse: bool = False) -> list[dict[str, Any]]:
    """Carry out the commands as one transaction; the objects of the answer, of which there are some after a `list`.
    `terse` lists sets without their elements.

    Blocks for a few milliseconds, and for some more per thousand elements. Raises NftError, which says that it happened
    while `doing`, and then nothing has changed; also where the library is missing.
    """
    with _turn:
        library = _open(doing)
        library.set_terse_output(terse)
        library.set_json_output(True)
        # Not the binding's own `json_cmd`: it would keep every other thread waiting ten times as long, 0.15 s where
        # there are 100 000 elements.
        code, output, error = library.cmd(msgspec.json.encode({"nftables": commands}).decode())
    if code != 0:
        raise NftError(doing=doing, reason=" ".join(error.split()) or "libnftables gave no reason")
    return list(msgspec.json.decode(output)["nftables"]) if output else []


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
