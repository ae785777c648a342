"""The tunnel devices of Coil among the links of a namespace, in the words of `ip`, but fewer. No input, no output."""

import re
from dataclasses import dataclass
from itertools import pairwise

_TUNNEL = re.compile(
    r"\d+: (?P<name>fou[46]_[^:@]+)(@[^:]+)?: .*? mtu (?P<mtu>\d+) .*\\\s+(?P<kind>ipip|ip6tnl) (?P<rest>.*)"
)
_WORDS = ("remote", "ttl", "hoplimit", "encap", "encap-sport", "encap-dport")


@dataclass(frozen=True, slots=True)
class TunnelLine:
    """A tunnel to one peer. `details` has the words of `ip` that say where it leads and how."""

    name: str
    mtu: int
    details: str

    @property
    def remote(self) -> str:
        """The other end's address; empty if `ip` named none."""
        found = re.search(r"\bremote (\S+)", self.details)
        return found.group(1) if found else ""

    def __str__(self) -> str:
        return f"{self.name}  mtu {self.mtu}  {self.details}"


def read_tunnel_lines(printed: str) -> list[TunnelLine]:
    """From what `ip -details -oneline link show` prints: the devices called fou4_… and fou6_…, by name."""
    found = filter(None, map(_TUNNEL.match, printed.splitlines()))
    lines = [TunnelLine(match["name"], int(match["mtu"]), f"{match['kind']} {_pick(match['rest'])}") for match in found]
    return sorted(lines, key=lambda line: line.name)


def _pick(text: str) -> str:
    return " ".join(f"{word} {value}" for word, value in pairwise(text.split()) if word in _WORDS)
