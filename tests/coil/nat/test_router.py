"""What clients cost the kernel of a router: exchanges are counted, as what one takes depends on the machine."""

import errno
import struct
from collections.abc import Container, Sequence
from ipaddress import ip_address
from typing import Final

import pytest

from coil.egress.gateway import RouterSpec, SourcePort
from coil.kernel.link import LinkName
from coil.kernel.nft_element import ElementChanges
from coil.kernel.nft_table import NftTable
from coil.nat import router
from coil.nat.router import add_peers
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError
from coil.netlink.link import new_virtual_link
from coil.netlink.wire import Request

SPEC: Final = RouterSpec(addresses=(ip_address("10.64.0.1"), ip_address("fd64::1")))
CLIENTS: Final = tuple(ip_address(text) for text in ("10.64.0.2", "10.64.0.3", "fd64::2"))
_INDEX: Final = struct.Struct("=4xi")


class CountingKernel(Connection):
    """A connection to a kernel in memory that has links; `exchanges` has what each datagram asked for."""

    def __init__(self) -> None:
        self.exchanges: list[tuple[object, ...]] = []
        self._links: dict[object, bytes] = {}
        self._make(new_virtual_link(LinkName("eth0"), "veth", b"", mtu=1450))

    def __enter__(self) -> "CountingKernel":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def apply(self, requests: Sequence[Request], *, tolerate: Container[int] = ()) -> None:
        self._count(requests)
        for request in requests:
            if request.doing[0] == "create":
                self._make(request)

    def get(self, request: Request) -> bytes:
        self._count([request])
        return self._links[request.doing[-1]]

    def _count(self, requests: Sequence[Request]) -> None:
        self.exchanges.append(tuple(str(request.doing[0]) for request in requests))

    def _make(self, request: Request) -> None:
        name = request.doing[-1]
        if name in self._links:
            raise KernelError(doing=str(request.doing), errno=errno.EEXIST)
        body = bytearray(request.body)
        _INDEX.pack_into(body, 0, len(self._links) + 1)
        self._links[name] = bytes(body)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> CountingKernel:
    counting = CountingKernel()
    monkeypatch.setattr(router, "Connection", lambda: counting)

    def change(_tables: Sequence[NftTable], changes: ElementChanges) -> None:
        counting.exchanges.append(("nft", *(len(keys) for keys in changes.adds.values())))

    monkeypatch.setattr(router, "change_elements", change)
    return counting


@pytest.mark.parametrize("count", range(1, len(CLIENTS) + 1))
def test_each_client_costs_three_exchanges_beside_those_that_read_the_uplink_and_let_all_in(
    kernel: CountingKernel, count: int
) -> None:
    add_peers(CLIENTS[:count], SPEC, SourcePort.FIXED)
    *made, let_in = kernel.exchanges
    assert made == [("read link",), *(("create",), ("read link",), ("set up link", "replace")) * count]
    assert let_in == {1: ("nft", 1), 2: ("nft", 2), 3: ("nft", 2, 1)}[count]


def test_a_client_that_has_its_tunnel_already_costs_no_more(kernel: CountingKernel) -> None:
    add_peers(CLIENTS[:1], SPEC, SourcePort.FIXED)
    kernel.exchanges.clear()
    add_peers(CLIENTS[:1], SPEC, SourcePort.FIXED)
    assert kernel.exchanges == [("read link",), ("create",), ("read link",), ("set up link", "add"), ("nft", 1)]
