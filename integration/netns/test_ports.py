"""Pods that are ports of a network, on this machine's kernel: what they have, that they reach each other and nothing of
the node, and that nothing is left of them whatever happens.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from coil.kernel.family import IPAddress
from coil.netlink.error import PodCheckError
from coild.model.attachment import UnknownAttachmentError
from coild.model.journal_file import JournalFile
from coild.model.port_error import BindError
from coild.neutron.journal import PortJournal
from integration.netns.netns import Netns, exchange
from integration.netns.port_life import BRIDGE, LOG, PortLife, key, prepare_folder
from integration.patience import wait_until
from tests.coild.neutron.port_node import handoff

pytestmark = pytest.mark.kernel

NUMBERS = {"c1": 21, "c2": 22}
V4, V6 = ip_address("10.0.0.22"), ip_address("fd00::16")
"""Of c2."""


@pytest.fixture
def host(new_netns: Callable[[], Netns]) -> Netns:
    """A node that forwards, with a switch."""
    made = new_netns()
    for switch in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
        made.set_sysctl(switch, "1")
    made.ip("link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0")
    made.set_sysctl(f"net/ipv6/conf/{BRIDGE}/disable_ipv6", "1")
    made.ip("link", "set", BRIDGE, "up")
    return made


@pytest.fixture
def folder(tmp_path: Path, host: Netns) -> Path:
    prepare_folder(tmp_path, host.name)
    return tmp_path


def plugged(host: Netns) -> set[str]:
    return {link["ifname"] for link in host.read("link", "show", "master", BRIDGE)}


def journal(folder: Path) -> tuple[set[str], set[str]]:
    """Who has a port by the journal, and whose is still to be unplugged."""
    held, left = PortJournal(JournalFile(folder / "journal", log=LOG)).load()
    return {found.container_id for found in held}, {holding.key.container_id for holding in left.values()}


def steady(netns: Netns) -> dict[str, Any]:
    """Without the switch's own link, whose hardware address and flags follow from its ports; it must have none."""
    found = netns.state()
    found["address"] = [link for link in found["address"] if link["ifname"] != BRIDGE]
    assert plugged(netns) == set()
    return found


class TestTwoPods:
    async def test_they_reach_each_other_at_once_and_leave_nothing(
        self, host: Netns, folder: Path, new_netns: Callable[[], Netns]
    ) -> None:
        pods = {container: new_netns() for container in NUMBERS}
        before = steady(host), {container: pod.state() for container, pod in pods.items()}
        async with PortLife.begun(folder, host.path, NUMBERS) as life:
            for container, pod in pods.items():
                await life.add(container, pod.path)
            for address, own in ((V4, "10.0.0.21"), (V6, "fd00::15")):
                assert exchange(pods["c1"], pods["c2"], address) == own
            for container, pod in pods.items():
                await life.engine.check(key(container), pod.path)
                await life.delete(container)
                with pytest.raises(UnknownAttachmentError):
                    await life.engine.check(key(container), pod.path)
        assert (steady(host), {container: pod.state() for container, pod in pods.items()}) == before
        assert journal(folder) == (set(), set())

    async def test_a_port_used_again_by_the_next_sandbox_is_reached_at_once(
        self, host: Netns, folder: Path, new_netns: Callable[[], Netns]
    ) -> None:
        """Same addresses, same hardware address, another link."""
        first, second, peer = new_netns(), new_netns(), new_netns()
        async with PortLife.begun(folder, host.path, NUMBERS) as life:
            await life.add("c1", peer.path)
            await life.add("c2", first.path)
            exchange(peer, first, V4)
            await life.delete("c2")
            await life.add("c2", second.path)
            exchange(peer, second, V4)
            exchange(peer, second, V6)


async def test_the_pods_end_is_the_port(host: Netns, pod: Netns, folder: Path) -> None:
    for scope in ("all", "default"):
        pod.set_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", "1")  # as some runtimes do
    async with PortLife.begun(folder, host.path, NUMBERS) as life:
        await life.add("c2", pod.path)
        link = pod.link("eth0")
        assert link is not None
        assert (link["operstate"], link["mtu"], link["address"]) == ("UP", 1450, "fa:16:3e:00:00:16")
        found = {f"{entry['local']}/{entry['prefixlen']}": entry for entry in link["addr_info"]}
        assert {"10.0.0.22/16", "fd00::16/64"} <= found.keys()
        assert not [entry for entry in found.values() if entry.get("tentative") or entry.get("dadfailed")]
        assert [(line["dst"], line.get("gateway")) for line in pod.read("route")] == [
            ("default", "10.0.255.254"),
            ("10.0.0.0/16", None),
        ]
        assert ("default", "fd00::ffff:1") in [(line["dst"], line.get("gateway")) for line in pod.read("-6", "route")]
        assert pod.sysctl("net/ipv6/conf/eth0/accept_ra") == "0"


async def test_the_hosts_end_is_on_the_switch_with_nothing_of_its_own(host: Netns, pod: Netns, folder: Path) -> None:
    async with PortLife.begun(folder, host.path, NUMBERS) as life:
        plan = await life.add("c2", pod.path)
        link = host.link(plan.host.name)
        assert link is not None
        assert (link["master"], link["addr_info"], link["operstate"]) == (BRIDGE, [], "UP")
        assert link["ifalias"] == f"COIL:@neutron.{handoff(22, '').port}:c2:eth0"
        assert plugged(host) == {plan.host.name}


class TestTheNodeIsNoWayAround:
    """An attacker in a pod sends to the hardware address of the host's end, which nothing has plugged in anywhere."""

    NODE = ip_address("192.0.2.7")
    OUTSIDE = ip_address("192.0.2.130")

    async def attack(self, host: Netns, pod: Netns, outside: Netns, folder: Path, *, soften: bool) -> list[bool]:
        """Whether packets to the node, and to what is behind it, arrive; to `soften` is to undo the link's sysctls."""
        (folder / "bin" / "switch").write_text("#!/bin/sh\n")
        host.ip("address", "add", f"{self.NODE}/32", "dev", "lo")
        host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", outside.name)
        for netns, link, address in ((host, "uplink", "192.0.2.129/25"), (outside, "eth0", f"{self.OUTSIDE}/25")):
            netns.ip("address", "add", address, "dev", link)
            netns.ip("link", "set", link, "up")
        async with PortLife.begun(folder, host.path, NUMBERS) as life:
            plan = await life.add("c2", pod.path)
            pod.ip("neighbour", "replace", "10.0.255.254", "lladdr", plan.host.mac, "dev", "eth0")
            if soften:
                host.set_sysctl(f"net/ipv4/conf/{plan.host.name}/rp_filter", "0")
                host.set_sysctl(f"net/ipv4/conf/{plan.host.name}/forwarding", "1")
            return [self.arrives(pod, host, self.NODE), self.arrives(pod, outside, self.OUTSIDE)]

    @staticmethod
    def arrives(pod: Netns, there: Netns, address: IPAddress) -> bool:
        """Of a TCP connection only the first packets count: answers have no way back."""
        before = segments(there)
        with pod.socket(address) as connection:
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.connect((str(address), 9))
        return segments(there) > before

    async def test_it_takes_nothing(
        self, host: Netns, pod: Netns, new_netns: Callable[[], Netns], folder: Path
    ) -> None:
        assert await self.attack(host, pod, new_netns(), folder, soften=False) == [False, False]

    async def test_it_would_without_its_sysctls(
        self, host: Netns, pod: Netns, new_netns: Callable[[], Netns], folder: Path
    ) -> None:
        assert await self.attack(host, pod, new_netns(), folder, soften=True) == [True, True]


def segments(netns: Netns) -> int:
    """Of TCP, that the namespace has received (RFC 4022, tcpInSegs)."""
    lines = netns.call(lambda: Path("/proc/thread-self/net/snmp").read_text().splitlines())
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(dict(zip(names, values, strict=True))["InSegs"])


class TestBindingsThatFail:
    async def test_an_add_leaves_nothing(self, host: Netns, pod: Netns, folder: Path) -> None:
        before = steady(host), pod.state()
        (folder / "fail-bind").touch()
        async with PortLife.begun(folder, host.path, NUMBERS) as life:
            with pytest.raises(BindError, match="told to fail"):
                await life.add("c2", pod.path)
            assert (steady(host), pod.state()) == before
            (folder / "fail-bind").unlink()
            await life.add("c2", pod.path)
            await life.engine.check(key("c2"), pod.path)

    async def test_a_del_takes_the_link_away_all_the_same(self, host: Netns, pod: Netns, folder: Path) -> None:
        before = steady(host), pod.state()
        async with PortLife.begun(folder, host.path, NUMBERS) as life:
            await life.add("c2", pod.path)
            (folder / "fail-unbind").touch()
            await life.delete("c2")
            assert (steady(host), pod.state()) == before
            assert journal(folder) == (set(), {"c2"})
        (folder / "fail-unbind").unlink()
        async with PortLife.begun(folder, host.path) as life:
            await life.ipam.unplugging.settle(handoff(22, "").port)
        assert journal(folder) == (set(), set())


async def test_the_next_process_takes_over_and_deletes_without_an_api_server(
    host: Netns, new_netns: Callable[[], Netns], folder: Path
) -> None:
    pods = {container: new_netns() for container in NUMBERS}
    before = steady(host)
    async with PortLife.begun(folder, host.path, NUMBERS) as life:
        for container, pod in pods.items():
            await life.add(container, pod.path)
    async with PortLife.begun(folder, host.path) as life:
        assert len(life.engine.attachments()) == 2
        exchange(pods["c1"], pods["c2"], V4)
        for container, pod in pods.items():
            await life.engine.check(key(container), pod.path)
            await life.delete(container)
    assert steady(host) == before
    assert journal(folder) == (set(), set())


async def test_a_pod_whose_namespace_has_gone_is_unplugged(host: Netns, pod: Netns, folder: Path) -> None:
    async with PortLife.begun(folder, host.path, NUMBERS) as life:
        await life.add("c2", pod.path)
        pod.delete()
        wait_until(lambda: not plugged(host), what="the end of the veth")
        await life.engine.collect()
        assert journal(folder) == (set(), set())
        assert life.engine.attachments() == []


async def test_an_add_that_is_repeated_mends_what_the_pod_has_lost(host: Netns, pod: Netns, folder: Path) -> None:
    async with PortLife.begun(folder, host.path, NUMBERS) as life:
        plan = await life.add("c2", pod.path)
        pod.ip("address", "del", "10.0.0.22/16", "dev", "eth0")
        with pytest.raises(PodCheckError, match=r"address 10\.0\.0\.22/16 on eth0 \(in the pod\)"):
            await life.engine.check(key("c2"), pod.path)
        await life.add("c2", pod.path)
        await life.engine.check(key("c2"), pod.path)
        assert plugged(host) == {plan.host.name}


async def test_killed_at_any_step_of_an_add_nothing_is_left_after_the_del(
    host: Netns, pod: Netns, folder: Path
) -> None:
    before = steady(host), pod.state()
    last = 0
    while True:
        last += 1
        given = {"folder": str(folder), "host": str(host.path), "netns": str(pod.path), "container": "c2"}
        command = [
            sys.executable,
            "-m",
            "integration.netns.port_life",
            json.dumps(given | {"number": 22, "last": last}),
        ]
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        async with PortLife.begun(folder, host.path) as life:
            for holding in life.ipam.ledger.left():
                await life.ipam.unplugging.settle(holding.port.port)
            await life.delete("c2")
        assert (steady(host), pod.state()) == before, last
        assert journal(folder) == (set(), set())
        if result.returncode == 0:
            break  # there are no more steps than those at which it was killed
        assert result.returncode == -9, result.stderr
    assert last > 8
