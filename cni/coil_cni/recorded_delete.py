"""A DEL that coild is not there for, on disk: coild carries it out when it is back, before it gives any address.

    <socket>.deletes/<container>:<interface>:<milliseconds of the monotonic clock>

Without it, pods of a full node could not end while coild is away, and coild's own new pod could not come. The name says
everything and the file is empty: so a record is there as a whole or not at all, and takes no space of a disk. That a
DEL is recorded twice does no harm.

The folder is for the same users as the socket beside it: whoever could put another one in its place could do that with
the socket, too. `coild.cni.missed_deletes` reads it.
"""

import posix
from time import monotonic

from coil_cni.error import TRY_AGAIN_LATER, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coil_cni.invocation import Invocation

SUFFIX = ".deletes"
MOST_RECORDS = 1024
"""More pods than a node may run, by far. Nobody may fill the node's memory by DELs, which /run is in."""
_NAME_MAX = 255  # linux/limits.h
_CREATE = 0o1 | 0o100 | 0o200 | 0o2000000  # O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, asm-generic/fcntl.h


def record_delete(socket: str, invocation: "Invocation", reason: CniError) -> None:
    """Have coild delete the attachment when it is back. Idempotent.

    `reason` is why it is not deleted now. Raises CniError with that and with why it could not be recorded.
    """
    folder = (socket + SUFFIX).encode()
    key = f"{invocation.container_id}:{invocation.ifname}:".encode()
    path = b"%b/%b%d" % (folder, key, int(monotonic() * 1000))
    if len(path) - len(folder) - 1 > _NAME_MAX:
        raise _failure(reason, f"a name of more than {_NAME_MAX} octets")
    try:
        _ensure_folder(folder)
        records = posix.listdir(folder)
        if any(record.startswith(key) for record in records):
            return
        if len(records) >= MOST_RECORDS:
            raise _failure(reason, f"{socket}{SUFFIX} has {len(records)} records, of at most {MOST_RECORDS}")
        posix.close(posix.open(path, _CREATE, 0o600))
    except FileExistsError:
        return  # in the same millisecond
    except OSError as error:
        raise _failure(reason, str(error)) from None


def _ensure_folder(folder: bytes) -> None:
    try:
        posix.mkdir(folder, 0o700)
    except FileExistsError:
        return


def _failure(reason: CniError, why: str) -> CniError:
    details = f"the DEL could not be recorded either: {why}"
    return CniError(TRY_AGAIN_LATER, reason.msg, f"{reason.details}; {details}" if reason.details else details)
