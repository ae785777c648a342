"""The process around `run`: its environment, its standard input and output, its end."""

import posix
from select import POLLIN, poll
from time import monotonic

from coil_cni.plugin import Edges, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coil_cni.grpc import Connection

_INPUT_MAX = 1 << 20
"""Octets: a network configuration with the result of a long chain has some thousands."""
_READ_SIZE = 65536


def main() -> None:
    """Run the plugin and end the process, without the interpreter's clean-up: 2 ms, and nothing is buffered."""
    edges = Edges(posix.environ, read_input=_read_input, write_output=_write_output, connect=_connect)
    posix._exit(run(edges))


def _read_input(deadline: float) -> bytes:
    """Standard input up to its end. Raises TimeoutError, or OSError when there is too much of it."""
    data = b""
    poller = poll()
    poller.register(0, POLLIN)
    while poller.poll(max(0, deadline - monotonic()) * 1000):
        chunk = posix.read(0, _READ_SIZE)
        if not chunk:
            return data
        data += chunk
        if len(data) > _INPUT_MAX:
            raise OSError(f"more than {_INPUT_MAX} octets")
    raise TimeoutError("no end of standard input in time")


def _write_output(data: bytes) -> None:
    while data:
        data = data[posix.write(1, data) :]


def _connect(path: str, seconds: float) -> "Connection":
    from coil_cni.grpc import connect  # late: see coil_cni.plugin

    return connect(path, seconds)
