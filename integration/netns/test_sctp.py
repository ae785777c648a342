"""SCTP between ports on bridges, with and without rules: where the kernel has it, and so always in the virtual machine.

Session `kernel_guest`; a kernel that lacks SCTP skips these tests, and the virtual machine fails them.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest
import structlog

from coil.kernel.family import IPAddress
from coil.neutron.port_rules import make_rule_set, parse_rule
from integration.netns.netns import Netns
from integration.netns.port_world import RED, SECONDS, PortPod, PortWorld, open_world
from integration.vm.run import INSIDE_VARIABLE

LOG = structlog.get_logger()
PORT: Final = 5000
_MOMENT: Final = 1.0


pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def sctp() -> None:
    """Skips where the kernel has none, but for the virtual machine, whose kernel has."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP).close()
    except OSError:
        if INSIDE_VARIABLE in os.environ:
            raise
        pytest.skip("this kernel has no SCTP")


@pytest.fixture
async def world(new_netns: Callable[[], Netns]) -> AsyncIterator[PortWorld]:
    async with open_world(new_netns, log=LOG) as world:
        yield world


async def converses(client: PortPod, server: PortPod, address: IPAddress, *, port: int, seconds: float) -> bool:
    """Whether an association comes about, and a message gets through each way."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6

    def make() -> socket.socket:
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
        made.settimeout(seconds)
        return made

    def converse() -> bool:
        with server.netns.call(make) as listener, client.netns.call(make) as asking:
            listener.bind((str(address), port))
            listener.listen()
            try:
                asking.connect((str(address), port))
            except TimeoutError:
                return False
            listener.settimeout(SECONDS)
            accepted, _ = listener.accept()
            with accepted:
                asking.sendall(b"question")
                assert accepted.recv(64) == b"question"
                accepted.sendall(b"answer")
                assert asking.recv(64) == b"answer"
            return True

    return await asyncio.to_thread(converse)


@pytest.mark.parametrize("there", [0, 1], ids=["here", "across"])
async def test_pods_of_a_network_reach_each_other(world: PortWorld, there: int) -> None:
    server, client = await world.pod(0, RED, 6), await world.pod(there, RED, 5)
    for address in (server.ipv4, server.ipv6):
        assert await converses(client, server, address, port=PORT, seconds=SECONDS)


async def test_rules_admit_its_ports(world: PortWorld) -> None:
    rules = [
        *(f"ingress {network} sctp {PORT}" for network in ("0.0.0.0/0", "::/0")),
        *(f"egress {network}" for network in ("0.0.0.0/0", "::/0")),
    ]
    server = await world.pod(0, RED, 6, rules=make_rule_set(map(parse_rule, rules)))
    client = await world.pod(1, RED, 5)
    for address in (server.ipv4, server.ipv6):
        assert await converses(client, server, address, port=PORT, seconds=SECONDS)
        assert not await converses(client, server, address, port=PORT + 1, seconds=_MOMENT)
    # Whom the server asks itself may answer.
    for address in (client.ipv4, client.ipv6):
        assert await converses(server, client, address, port=PORT, seconds=SECONDS)
