"""Tables that the image's libnftables has written, read by the nft of this machine, whatever version that is.

Both are in one namespace of a node: what the one writes, kube-proxy and administrators list with the other. What nft
cannot read breaks kube-proxy, which lists all tables.
"""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from coil.egress.client_filter import plan_client_table
from coil.eip.eip_table import EipTableOptions, plan_eip_tables
from coil.podnet.host_port import plan_host_port_table
from coil.podnet.source_table import plan_source_table
from integration.image.rootfs import Container, Rootfs
from integration.netns.netns import Netns

WRITE_ALL = """
from ipaddress import IPv4Address, IPv6Address
from coil.egress.client_filter import plan_client_table
from coil.egress.gateway import Uplink
from coil.egress.reply_plan import plan_reply_marks
from coil.egress.router_plan import plan_table
from coil.eip.eip_table import EipTableOptions, plan_eip_tables
from coil.kernel.link import LinkName
from coil.kernel.nft_element import SetName
from coil.nft.element_sync import load_elements
from coil.podnet.host_port import plan_host_port_table
from coil.podnet.source_table import plan_source_table

WORDS = {
    "ipv4_addr": "192.0.2.1", "ipv6_addr": "2001:db8::1", "ether_addr": "02:00:00:00:00:01", "classid": "1:1",
    "mark": 0x26000100, "inet_proto": "tcp", "inet_service": "8080",
    "ifname": "eth0", "nf_proto": "ipv4",
}

def element(entry):
    words = [str(WORDS[part]) for part in entry.key]
    return words[0] if len(words) == 1 else tuple(words), WORDS.get(entry.value)

addresses = [IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1")]
uplink = LinkName("eth0")
router, client = plan_table(addresses, uplink), plan_reply_marks(Uplink(name=uplink, index=2, mtu=1500))
alone = [router, client, plan_host_port_table(), plan_source_table(), plan_client_table(udp_port=5555)]
for tables in (plan_eip_tables(EipTableOptions()), *([table] for table in alone)):
    elements = {
        SetName(table.family, table.name, entry.name): dict([element(entry)])
        for table in tables for entry in table.sets if not entry.timeouts
    }
    print(load_elements(tables, elements), load_elements(tables, elements))
"""


@pytest.fixture
def listing(image: Rootfs, new_netns: Callable[[], Netns]) -> list[dict[str, Any]]:
    """All tables, in JSON."""
    node = f"--net={new_netns().path}"
    command = image.command(["python3", "-c", WRITE_ALL], container=Container(user="0:0"))
    done = subprocess.run(["nsenter", node, *command], check=False, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    # What was written is right when it is looked at again.
    assert done.stdout.splitlines() == ["True False"] * 6
    read = ["nsenter", node, "nft", "--json", "list", "ruleset"]
    return list(json.loads(subprocess.run(read, check=True, capture_output=True, timeout=60).stdout)["nftables"])


def test_this_machines_nft_reads_what_the_images_library_has_written(listing: list[dict[str, Any]]) -> None:
    found = {
        (kind, entry[kind]["family"], entry[kind].get("table"), entry[kind]["name"])
        for entry in listing
        for kind in ("table", "set", "map", "chain")
        if kind in entry
    }
    ours = (plan_host_port_table(), plan_source_table(), plan_client_table(udp_port=5555))
    for table in (*plan_eip_tables(EipTableOptions()), *ours):
        family = table.family.value
        assert ("table", family, None, table.name) in found
        assert {("chain", family, table.name, chain.name) for chain in table.chains} <= found
        for entry in table.sets:
            kind = "set" if entry.value is None else "map"
            assert (kind, family, table.name, entry.name) in found


def test_it_reads_their_elements(listing: list[dict[str, Any]]) -> None:
    for table in (*plan_eip_tables(EipTableOptions()), plan_host_port_table(), plan_client_table(udp_port=5555)):
        filled = {
            entry[kind]["name"]
            for entry in listing
            for kind in ("set", "map")
            if kind in entry and entry[kind]["table"] == table.name and entry[kind].get("elem")
        }
        assert {entry.name for entry in table.sets if not entry.timeouts} <= filled
