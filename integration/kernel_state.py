"""What the kernel holds in a network namespace, as iproute2 tells it: the oracle, so nothing of it is our own code."""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from typing import Any

_SECONDS = 60

POD_TABLE = "116"
EXPORT_TABLE = "119"
_VANISHING = {"handle", "expires", "packets", "bytes", "expires_in"}


@dataclass(frozen=True, slots=True)
class KernelState:
    """A view into the namespace at the path `netns`; every look is a new one."""

    netns: str

    def run(self, *argv: str, check: bool = True) -> str:
        """The standard output of a command inside. Raises CalledProcessError."""
        command = ["nsenter", f"--net={self.netns}", "--", *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=check).stdout

    def ip(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects of `ip -details -json ARGUMENTS`."""
        objects: list[dict[str, Any]] = json.loads(self.run("ip", "-details", "-json", *arguments) or "[]")
        return [entry for entry in objects if entry]  # for some things it prints empty objects between the others

    def link(self, name: str) -> dict[str, Any] | None:
        """The link of that name."""
        return next((link for link in self.ip("link", "show") if link["ifname"] == name), None)

    def pod_links(self) -> dict[str, str]:
        """Alias and name of each link whose alias is of our kind."""
        links = self.ip("link", "show")
        return {link["ifalias"]: link["ifname"] for link in links if link.get("ifalias", "").startswith("COIL:")}

    def global_addresses(self) -> set[str]:
        """All addresses of the namespace that are good beyond a link."""
        return {
            str(ip_interface(address["local"]).ip)
            for link in self.ip("address", "show")
            for address in link["addr_info"]
            if address["scope"] == "global"
        }

    def routes(self, table: str) -> list[dict[str, Any]]:
        """The routes of a table, both families; those that IPv6 adds for itself left out."""
        # Asked for by number, a table that was never written to is an error.
        found = [route for family in ("-4", "-6") for route in self.ip(family, "route", "show", "table", "all")]
        return [route for route in found if str(route.get("table", "main")) == table]

    def destinations(self, table: str) -> dict[str, str]:
        """The destinations of a table, as networks, and the link that each leads to."""
        return {str(ip_network(route["dst"])): route["dev"] for route in self.routes(table)}

    def nft(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects of `nft --json ARGUMENTS` as `steady`; none when it fails, as for a table that is not there."""
        text = self.run("nft", "--json", *arguments, check=False)
        return [steady(entry) for entry in json.loads(text)["nftables"]] if text else []

    def sysctl(self, path: str) -> str:
        """The value of a sysctl, named by its path below /proc/sys."""
        return self.run("cat", f"/proc/sys/{path}").strip()


def steady(entry: Any) -> Any:
    """What nft prints, without what changes by itself: counters, remaining times, and the numbers of objects."""
    if isinstance(entry, dict):
        return {key: steady(value) for key, value in entry.items() if key not in _VANISHING}
    return [steady(each) for each in entry] if isinstance(entry, list) else entry


def render_facts(facts: Iterable[tuple[str, object]], words: Mapping[str, str]) -> set[str]:
    """A line for each fact: what it is about, and JSON. Texts in it that the kernel has drawn become the `words` for
    them, so that two namespaces with the same state have the same lines.
    """
    lines = set()
    for about, fact in facts:
        line = f"{about} {json.dumps(fact, sort_keys=True)}"
        for drawn, word in words.items():
            line = line.replace(f'"{drawn}"', f'"{word}"')
        lines.add(line)
    return lines
