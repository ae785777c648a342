"""The exchange that so many tests judge by notices a packet that was lost."""

from collections.abc import Callable
from ipaddress import ip_address

import pytest

from integration.netns.eip_world import nft
from integration.netns.netns import Netns, exchange

pytestmark = pytest.mark.kernel

CLIENT, SERVER = "192.0.2.1", "192.0.2.2"
LOSS = """
table inet loss {{
  set seen {{ type inet_service . inet_service; flags dynamic; }}
  chain arriving {{
    type filter hook input priority 0
    tcp flags & (syn | ack) == {0} tcp sport . tcp dport != @seen add @seen {{ tcp sport . tcp dport }} drop
  }}
}}
"""
"""The first such packet of each connection."""


@pytest.fixture
def ends(new_netns: Callable[[], Netns]) -> tuple[Netns, Netns]:
    client, server = new_netns(), new_netns()
    client.ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", server.name)
    for end, address in ((client, CLIENT), (server, SERVER)):
        end.ip("address", "add", f"{address}/24", "dev", "eth0")
        end.ip("link", "set", "eth0", "up")
    return client, server


def test_an_exchange(ends: tuple[Netns, Netns]) -> None:
    assert exchange(*ends, ip_address(SERVER)) == CLIENT


@pytest.mark.parametrize("flags", ["syn", "syn | ack"])
def test_a_first_packet_that_was_lost(ends: tuple[Netns, Netns], flags: str) -> None:
    nft(ends[1] if flags == "syn" else ends[0], LOSS.format(flags))
    with pytest.raises(AssertionError, match=r"a packet of an exchange was lost|a packet was repeated"):
        exchange(*ends, ip_address(SERVER))
