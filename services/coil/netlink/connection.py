"""One netlink socket, used by one thread for one job.

A socket lives as long as its job (opening one costs 20 µs): nothing piles up in its queue, and a lost answer
ends the job, not the process. The kernel handles a request within the `sendmsg` that carries it, so the
answers are there when it returns.
"""

import errno
import socket
import struct
from collections.abc import Callable, Container, Sequence
from types import TracebackType
from typing import Final

from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.wire import (
    HEADER,
    NLM_F_ACK,
    NLM_F_ACK_TLVS,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    NLMSGERR_ATTR_MSG,
    Request,
    parse_attributes,
    parse_text,
    split_messages,
)

# linux/netlink.h; the socket module has none of them.
_SOL_NETLINK: Final = 270
_NETLINK_CAP_ACK: Final = 10
_NETLINK_EXT_ACK: Final = 11
_NETLINK_GET_STRICT_CHK: Final = 12

_S32: Final = struct.Struct("=i")

_TIMEOUT: Final = 10.0  # seconds; only a kernel whose answer was lost ever takes that long
_BATCH: Final = 128  # requests in one datagram: the receive buffer holds an error for each of them
_DATAGRAM: Final = 1 << 16
_DUMP_ATTEMPTS: Final = 8
_ABSENT: Final = {errno.ENOENT, errno.EAFNOSUPPORT}


class Connection:
    """A netlink socket in the namespace that the calling thread is in. A context manager; not for use by two
    threads.
    """

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        """Open the socket, to speak rtnetlink or another protocol. Raises NetlinkError where there is no file
        descriptor left.
        """
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        try:
            self._socket = socket.socket(socket.AF_NETLINK, kind, protocol)
        except OSError as error:
            raise NetlinkError(f"cannot open a netlink socket: {error.strerror}") from error
        self._sequence = 0
        try:
            self._socket.settimeout(_TIMEOUT)
            # Errors without a copy of the request but with a sentence; dumps that the kernel filters.
            for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def apply(self, requests: Sequence[Request], *, tolerate: Container[int] = ()) -> None:
        """Carry out all requests in their order. Raises the first KernelError, unless its number is
        tolerated; the kernel went on with the others regardless.
        """
        for error in self.submit(requests, tolerate=tolerate):
            raise error

    def submit(self, requests: Sequence[Request], *, tolerate: Container[int] = ()) -> list[KernelError]:
        """Carry out all requests in their order and return what the kernel refused, unless its number is
        tolerated.
        """
        errors: list[KernelError] = []
        for start in range(0, len(requests), _BATCH):
            errors += self._submit_batch(requests[start : start + _BATCH])
        return [error for error in errors if error.errno not in tolerate]

    def _submit_batch(self, requests: Sequence[Request]) -> list[KernelError]:
        first = self._sequence + 1
        last = self._sequence = self._sequence + len(requests)
        datagram = bytearray()
        for sequence, request in enumerate(requests, first):
            # A failure is always answered. Only the last success is asked for: one answer tells that all is
            # done.
            flags = request.flags | (NLM_F_REQUEST | NLM_F_ACK if sequence == last else NLM_F_REQUEST)
            datagram += _message(request, flags, sequence)
        self._send(datagram)
        errors: list[KernelError] = []
        while True:
            for kind, flags, sequence, body in split_messages(self._receive()):
                if kind != NLMSG_ERROR or not first <= sequence <= last:
                    continue  # the answer to something given up earlier
                if error := _refusal(kind, body, flags, requests[sequence - first]):
                    errors.append(error)
                if sequence == last:
                    return errors

    def get(self, request: Request) -> bytes:
        """The one message that answers a question. Raises KernelError (ENODEV, ENETUNREACH… as the question
        may be).
        """
        self._sequence += 1
        self._send(_message(request, request.flags | NLM_F_REQUEST, self._sequence))
        while True:
            for kind, flags, sequence, body in split_messages(self._receive()):
                if sequence != self._sequence:
                    continue
                if kind != NLMSG_ERROR:
                    return body
                if error := _refusal(kind, body, flags, request):
                    raise error

    def dump(self, request: Request, *, keep: Callable[[bytes], bool] = lambda _body: True) -> list[bytes]:
        """All the messages that answer a dump request, from one consistent pass over the kernel's table.

        A table that does not exist is empty, and so is a family that the kernel was started without. Raises
        KernelError; after a few passes that were all disturbed by changes, EINTR. `keep` says of each message whether
        it is to be returned, where there are too many to hold them all.
        """
        for _ in range(_DUMP_ATTEMPTS):
            bodies = self._dump_once(request, keep)
            if bodies is not None:
                return bodies
        raise KernelError(doing=_words(request), errno=errno.EINTR, reason="the table would not hold still")

    def _dump_once(self, request: Request, keep: Callable[[bytes], bool]) -> list[bytes] | None:
        """One pass, read to its end in any case; None if the table changed meanwhile."""
        self._sequence += 1
        self._send(_message(request, request.flags | NLM_F_REQUEST, self._sequence))
        bodies: list[bytes] = []
        consistent = True
        while True:
            for kind, flags, sequence, body in split_messages(self._receive()):
                if sequence != self._sequence:
                    continue
                consistent = consistent and not flags & NLM_F_DUMP_INTR
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    error = _refusal(kind, body, flags, request)
                    if error is not None and error.errno not in _ABSENT:
                        raise error
                    return bodies if consistent else None
                if keep(body):
                    bodies.append(body)

    def _send(self, datagram: bytes | bytearray) -> None:
        try:
            self._socket.send(datagram)
        except OSError as error:
            raise NetlinkError(f"the kernel did not take a request: {error}") from error

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_DATAGRAM)
        except TimeoutError:
            raise NetlinkError(f"the kernel did not answer within {_TIMEOUT:.0f} s") from None
        except OSError as error:
            raise NetlinkError(f"answers of the kernel were lost: {error}") from error


def _message(request: Request, flags: int, sequence: int) -> bytes:
    body = request.body
    return HEADER.pack(HEADER.size + len(body), request.type, flags, sequence, 0) + body


def _refusal(kind: int, body: bytes, flags: int, request: Request) -> KernelError | None:
    """The error in an NLMSG_ERROR or NLMSG_DONE message; None where its number is 0, which means success."""
    number = -_S32.unpack_from(body)[0]
    if number == 0:
        return None
    reason = ""
    if flags & NLM_F_ACK_TLVS:
        # An error has the header of its request (CAP_ACK: no more than that) before the attributes.
        offset = _S32.size + (HEADER.size if kind == NLMSG_ERROR else 0)
        reason = parse_text(parse_attributes(body, offset).get(NLMSGERR_ATTR_MSG, b""))
    return KernelError(doing=_words(request), errno=number, reason=reason)


def _words(request: Request) -> str:
    return " ".join(map(str, request.doing))
