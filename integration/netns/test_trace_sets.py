"""Lookups in a dump's sets find what was put into the kernel's, and nothing else."""

import json
import subprocess
import sys
from ipaddress import ip_address

import pytest

from coil.eip.eip_set import ALIVE, NODES, SETS
from coil.kernel.family import Family
from coil.kernel.nft_element import Elements, SetName
from coil.kernel.nft_table import TableFamily
from coil.nft.element_sync import load_elements, refresh_timeouts
from integration.netns.eip_world import TABLES
from integration.netns.netns import Netns
from integration.netns.test_eip_elements import SOME
from kubectl_coil.trace.nft_set import NftSets

pytestmark = pytest.mark.kernel

FOUR = SETS[Family.IPV4]
MORE: Elements = {
    SETS[Family.IPV6].classes: {"fd00::1": "1:1"},
    SETS[Family.IPV6].subnet_classes: {"fd00:1::/64": "1:2", "fd00:2::5-fd00:2::9": "1:3"},
    SETS[Family.IPV6].ranges[1]: {("1:2", "2001:db8::/32"): "3:9", ("1:3", "2001:db8::1-2001:db8::7"): "3:a"},
}


def dump_sets(host: Netns, *arguments: str) -> NftSets:
    command = [sys.executable, "-m", "coil_node_dump", "--parts=tables", *arguments]
    done = subprocess.run(
        ["ip", "netns", "exec", host.name, *command], capture_output=True, text=True, timeout=120, check=True
    )
    document = json.loads(done.stdout)
    assert document["troubles"] == []
    return NftSets.of(document["tables"])


def test_what_is_in_the_kernel_is_found(host: Netns) -> None:
    host.call(lambda: load_elements(TABLES, {**SOME, **MORE}))
    host.call(lambda: refresh_timeouts(((ALIVE, ("ipv4",)),), 600_000))
    sets = dump_sets(host)
    assert sets.get(FOUR.classes, ip_address("10.0.0.1")) == "1:1"
    assert sets.get(FOUR.classes, ip_address("10.0.0.2")) is None
    assert sets.get(FOUR.ranges[1], "1:1", ip_address("203.0.113.9")) == "3:1"
    assert sets.get(FOUR.ranges[1], "1:1", ip_address("198.51.100.77")) == "3:2"
    assert sets.get(FOUR.ranges[1], "1:2", ip_address("198.51.100.77")) is None
    assert sets.get(FOUR.ranges[1], "1:1", ip_address("198.51.101.1")) is None
    assert sets.get(FOUR.ways, "3:1") == 0x26000100
    assert sets.has(FOUR.cluster, ip_address("10.9.9.9"))
    assert not sets.has(FOUR.cluster, ip_address("11.0.0.0"))
    assert sets.get(NODES, "02:00:00:00:00:01") == 0x26000100
    six = SETS[Family.IPV6]
    assert sets.get(six.classes, ip_address("fd00::1")) == "1:1"
    assert sets.get(six.subnet_classes, ip_address("fd00:1::ff")) == "1:2"
    assert sets.get(six.subnet_classes, ip_address("fd00:2::9")) == "1:3"
    assert sets.get(six.subnet_classes, ip_address("fd00:2::a")) is None
    assert sets.get(six.ranges[1], "1:2", ip_address("2001:db8::1")) == "3:9"
    assert sets.get(six.ranges[1], "1:3", ip_address("2001:db8::7")) == "3:a"
    assert sets.get(six.ranges[1], "1:3", ip_address("2001:db8::8")) is None
    assert sets.has(ALIVE, "ipv4")
    assert not sets.has(ALIVE, "ipv6")


def test_a_table_that_is_not_there_has_nothing(host: Netns) -> None:
    sets = dump_sets(host)
    assert FOUR.classes not in sets
    assert sets.get(FOUR.classes, ip_address("10.0.0.1")) is None
    assert not sets.has(SetName(TableFamily.INET, "other", "x"), "y")
