"""Policy routing over a dump is what the kernel does: `ip route get` for random packets, by random rules and tables."""

import json
import random
import subprocess
import sys
from ipaddress import ip_address
from typing import Any

import msgspec
import pytest

from coil.page.node_dump import NamespaceDump, NodeDump
from integration.netns.netns import Netns
from kubectl_coil.trace.routing import LOCAL_INPUT, Decision, Packet, RouteResult, find_route

pytestmark = pytest.mark.kernel

LINKS = ("left", "right", "uplink")
TABLES = ("main", "101", "102", "103")
ERRORS = {"blackhole": "Invalid argument", "unreachable": "No route to host", "prohibit": "Permission denied"}
SOURCES = {4: "192.0.2.1", 6: "2001:db8::1"}
SITUATIONS = 200


class Maze:
    """Addresses, rules and routes of a namespace, all drawn from few values so that they meet."""

    def __init__(self, seed: int, version: int) -> None:
        self.rng = random.Random(seed)
        self.version = version
        self.four = version == 4

    def network(self) -> str:
        length = self.rng.choice((0, 8, 16, 24, 32) if self.four else (0, 32, 48, 64, 128))
        if length == 0:
            return "default"
        return f"{self.masked(self.address(), length)}/{length}"

    def masked(self, address: str, length: int) -> str:
        bits = 32 if self.four else 128
        value = int(ip_address(address)) >> (bits - length) << (bits - length)
        return str(ip_address(value) if self.four else ip_address(value.to_bytes(16, "big")))

    def address(self) -> str:
        a, b, c = (self.rng.choice((0, 1)) for _ in range(3))
        return f"10.{a}.{b}.{c + 1}" if self.four else f"fd00:{a:x}:{b:x}::{c + 1:x}"

    def rules(self) -> list[list[str]]:
        return [self._rule(priority) for priority in sorted(self.rng.sample(range(100, 900), 6))]

    def _rule(self, priority: int) -> list[str]:
        rng = self.rng
        rule = ["priority", str(priority)]
        if rng.random() < 0.3:
            rule.insert(0, "not")
        if rng.random() < 0.5:
            rule += ["to", self.network().replace("default", "0.0.0.0/0" if self.four else "::/0")]
        if rng.random() < 0.3:
            rule += ["fwmark", rng.choice(("0x1", "0x10/0xf0", "0x2/0x3"))]
        if rng.random() < 0.3:
            rule += ["iif", rng.choice(("left", "lo"))]
        if rule[0] == "not" and len(rule) == 3:
            rule = rule[1:]  # a rule without selectors cannot be turned
        if rng.random() < 0.2:
            return [*rule, rng.choice(tuple(ERRORS))]
        rule += ["lookup", rng.choice(TABLES)]
        if rng.random() < 0.5:
            rule += ["suppress_prefixlength", rng.choice(("0", "16"))]
        return rule

    def routes(self) -> list[list[str]]:
        found = []
        for _ in range(24):
            kind = self.rng.choice(("unicast", "unicast", "unicast", "throw", *ERRORS))
            metric = self.rng.choice(("10", "20"))
            route = [kind, self.network(), "table", self.rng.choice(TABLES), "metric", metric]
            found.append([*route, "dev", self.rng.choice(LINKS)] if kind == "unicast" else route)
        return found


def populate(host: Netns, maze: Maze) -> None:
    host.set_sysctl("net/ipv6/conf/all/disable_ipv6", "0")
    host.set_sysctl("net/ipv4/ip_forward", "1")
    host.set_sysctl("net/ipv6/conf/all/forwarding", "1")
    host.set_sysctl("net/ipv4/conf/all/rp_filter", "0")
    for link in LINKS:
        host.ip("link", "add", link, "type", "veth", "peer", "name", f"{link}x")
        host.set_sysctl(f"net/ipv4/conf/{link}/rp_filter", "0")
        host.set_sysctl(f"net/ipv6/conf/{link}/accept_dad", "0")
        for end in (link, f"{link}x"):
            host.ip("link", "set", end, "up")
    host.ip("address", "add", "192.0.2.1/24", "dev", "uplink")
    host.ip("-6", "address", "add", "2001:db8::1/64", "dev", "uplink", "nodad")
    family = f"-{maze.version}"
    for rule in maze.rules():
        host.ip(family, "rule", "add", *rule)
    for route in maze.routes():
        subprocess.run(["ip", "-n", host.name, family, "route", "replace", *route], check=True, timeout=60)


def read_dump(host: Netns) -> NamespaceDump:
    command = [sys.executable, "-m", "coil_node_dump", "--parts=node", "--inspect-page-addr=off"]
    done = subprocess.run(["ip", "netns", "exec", host.name, *command], capture_output=True, timeout=120, check=True)
    return msgspec.json.decode(done.stdout, type=NodeDump).node


def ask_kernel(host: Netns, packet: Packet) -> tuple[str, str]:
    """The result, and by which link."""
    arguments = ["to", str(packet.destination)]
    if packet.source is not None:
        arguments += ["from", str(packet.source)]
    if packet.input_link != LOCAL_INPUT:
        arguments += ["iif", packet.input_link]
    if packet.mark:
        arguments += ["mark", hex(packet.mark)]
    command = ["ip", "-n", host.name, "-json", f"-{packet.destination.version}", "route", "get", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return done.stderr.strip(), ""
    [route] = json.loads(done.stdout)
    return route.get("type", "unicast"), route.get("dev", "")


def agrees(decision: Decision, result: str, link: str) -> bool:
    match decision.result:
        case RouteResult.FORWARD:
            return result == "unicast" and link in decision.links
        case RouteResult.LOCAL:
            return result == "local"
        case RouteResult.NO_ROUTE:
            return "Network is unreachable" in result
        case RouteResult.UNREACHABLE if decision.route is None:
            return "Network is unreachable" in result  # what a rule says, and not a route
        case error:
            return ERRORS[error.value] in result or result == error.value


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(3))
def test_random_packets_go_where_the_kernel_says(host: Netns, seed: int, version: int) -> None:
    maze = Maze(seed, version)
    populate(host, maze)
    namespace = read_dump(host)
    differences: list[Any] = []
    results = set()
    for _ in range(SITUATIONS):
        forwarded = maze.rng.random() < 0.5
        source = ip_address(maze.address() if forwarded else SOURCES[version])
        packet = Packet(
            source=source,
            destination=ip_address(maze.address()),
            mark=maze.rng.choice((0, 0, 1, 2, 0x10, 0x12)),
            input_link="left" if forwarded else LOCAL_INPUT,
        )
        decision, (result, link) = find_route(namespace, packet), ask_kernel(host, packet)
        results.add(decision.result)
        if not agrees(decision, result, link):
            differences.append((packet, decision.result, decision.links, decision.rule, decision.route, result, link))
    assert differences == []
    assert len(results) > 2
