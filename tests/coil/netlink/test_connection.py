"""A dump that changes of the table have torn is never returned: what is missing in it would be taken for gone."""

import errno
import socket
import struct
from collections.abc import Iterator, Sequence

import pytest

from coil.netlink.connection import Connection
from coil.netlink.error import KernelError
from coil.netlink.wire import HEADER, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, Request

NLM_F_MULTI = 2
ENTRY = 16
REQUEST = Request(18, NLM_F_DUMP, b"", ("list", "links"))


class Kernel:
    """The other end of a connection's socket: it has answered before it is asked."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.connection._socket.close()
        self.connection._socket, self._end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.connection._socket.settimeout(60.0)

    def close(self) -> None:
        self.connection._socket.close()
        self._end.close()

    def answer(self, *passes: tuple[Sequence[bytes], int | None]) -> None:
        """A pass is entries, and which of its messages has the flag: a number, counted with the DONE at the end."""
        for sequence, (entries, torn) in enumerate(passes, 1):
            messages = [(ENTRY, entry) for entry in entries] + [(NLMSG_DONE, struct.pack("=i", 0))]
            for number, (kind, body) in enumerate(messages):
                flags = NLM_F_MULTI | (NLM_F_DUMP_INTR if number == torn else 0)
                self._end.send(HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


def test_a_pass_that_nothing_disturbed_is_the_answer(kernel: Kernel) -> None:
    kernel.answer(([b"eth0", b"eth1"], None))
    assert kernel.connection.dump(REQUEST) == [b"eth0", b"eth1"]


@pytest.mark.parametrize("torn", [0, 1, 2], ids=["first entry", "last entry", "DONE alone"])
def test_a_torn_pass_is_repeated_and_nothing_of_it_kept(kernel: Kernel, torn: int) -> None:
    kernel.answer(([b"eth0", b"gone"], torn), ([b"eth0", b"eth1"], None))
    assert kernel.connection.dump(REQUEST) == [b"eth0", b"eth1"]


def test_a_table_that_never_holds_still_is_an_error(kernel: Kernel) -> None:
    kernel.answer(*[([b"eth0"], 1)] * 8)
    with pytest.raises(KernelError, match="the table would not hold still") as info:
        kernel.connection.dump(REQUEST)
    assert info.value.errno == errno.EINTR
