"""One execution of the plugin, from its input to its output (`run`), and the process around it (`main`).

`run` takes the edges of the process as arguments and raises for no input: every failure is an error document, and
the exit status says whether there was one.
"""

import posix
from select import POLLIN, poll
from time import monotonic

from coil_cni.error import INTERNAL, IO_FAILURE, CniError
from coil_cni.invocation import NEWEST, SUPPORTED, parse_invocation
from coil_cni.json_text import encode
from coil_cni.netconf import parse_netconf, read_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coil_cni.grpc import Connect, Connection
    from coil_cni.invocation import Invocation
    from coil_cni.service import RecordDelete

TIMEOUT = 60.0
"""Seconds for everything: reading the configuration, connecting, the call."""

_INPUT_MAX = 1 << 20
"""Octets: a network configuration with the result of a long chain has some thousands."""
_READ_SIZE = 65536


class Edges:
    """What a process touches.

    `read_input` returns all of standard input, by the given time on the monotonic clock at the latest, and
    `write_output` takes one whole JSON document; both may raise OSError. `connect` is `coil_cni.grpc.connect`,
    and `record_delete` is `coil_cni.recorded_delete.record_delete`.
    """

    __slots__ = ("connect", "environ", "read_input", "record_delete", "write_output")

    def __init__(
        self,
        environ: "Mapping[bytes, bytes]",
        *,
        read_input: "Callable[[float], bytes]",
        write_output: "Callable[[bytes], None]",
        connect: "Connect",
        record_delete: "RecordDelete",
    ) -> None:
        self.environ = environ
        self.read_input = read_input
        self.write_output = write_output
        self.connect = connect
        self.record_delete = record_delete


def run(edges: Edges) -> int:
    """Execute the command that the environment names; returns the exit status, 0 or 1."""
    deadline = monotonic() + TIMEOUT
    received: list[bytes] = []  # standard input, once it was read: an error names the version it asks for

    def read_input() -> bytes:
        try:
            received.append(edges.read_input(deadline))
        except OSError as error:
            msg = "the network configuration cannot be read from standard input"
            raise CniError(IO_FAILURE, msg, str(error)) from None
        return received[0]

    failure = None
    output = b""
    try:
        output = _execute(edges, read_input, deadline)
    except CniError as error:
        failure = error
    except Exception as error:  # a defect; the runtime shall have it in the form that it reads
        failure = CniError(INTERNAL, "the plugin failed", f"{type(error).__name__}: {error}")
    if failure is not None:
        output = encode(failure.document(_error_version(b"".join(received))))
    if output:
        try:
            edges.write_output(output)
        except OSError:
            return 1
    return 0 if failure is None else 1


def _execute(edges: Edges, read_input: "Callable[[], bytes]", deadline: float) -> bytes:
    invocation = parse_invocation(edges.environ)
    data = read_input()
    if invocation.command == "VERSION":
        return encode({"cniVersion": read_version(data), "supportedVersions": SUPPORTED})
    conf = parse_netconf(data, invocation.command)
    # Late, because VERSION and refusals do without the network's half of the program.
    from coil_cni.service import ask

    return ask(edges.connect, invocation, conf, data, deadline=deadline, record_delete=edges.record_delete)


def _error_version(data: bytes) -> str:
    """An error is written in the version of the configuration, where that much of it can be read."""
    try:
        version = read_version(data)
    except CniError:
        return NEWEST
    return version if version in SUPPORTED else NEWEST


def main() -> None:
    """Run the plugin on the environment, standard input and standard output, and end the process.

    Without the interpreter's clean-up: 2 ms, and nothing is buffered.
    """
    edges = Edges(
        posix.environ,
        read_input=_read_input,
        write_output=_write_output,
        connect=_connect,
        record_delete=_record_delete,
    )
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
    from coil_cni.grpc import connect  # late: see `_execute`

    return connect(path, seconds)


def _record_delete(socket: str, invocation: "Invocation", reason: CniError) -> None:
    from coil_cni.recorded_delete import record_delete  # late: hardly ever wanted

    record_delete(socket, invocation, reason)
