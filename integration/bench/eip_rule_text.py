"""The same state in the shape of the public project, as texts for `ipset restore` and `iptables-restore`. Pure.

Per policy one set of sources and one of destinations; one rule: a mark for what another gateway carries, source NAT for
what this node does. Both are asked in order, the marks of every packet, source NAT of every new connection.
"""

from collections.abc import Iterator
from typing import Final

from integration.bench.eip_crowd import MARK_THERE, Crowd, destinations, eip_address

_MARKS, _SOURCES = "egress-mark", "egress-snat"
_MATCH: Final = "-m set --match-set {0}-src src -m set --match-set {0}-dst dst -m conntrack --ctdir ORIGINAL"


def full_sets(crowd: Crowd) -> str:
    """For `ipset restore`, where there are none."""
    return _text(line for number in range(2 * crowd.policies) for line in _sets(crowd, number))


def full_rules(crowd: Crowd) -> str:
    """For `iptables-restore`, when the sets are there."""
    return _text(
        [
            "*mangle",
            f":{_MARKS} - [0:0]",
            f"-A PREROUTING -j {_MARKS}",
            *(
                f"-A {_MARKS} {_MATCH.format(set_name(number))} -j MARK --set-xmark {MARK_THERE:#x}/0xffffffff"
                for number in crowd.there()
            ),
            "COMMIT",
            "*filter",
            "-A FORWARD -m mark --mark 0x26000000/0xff000000 -j MARK --set-xmark 0x12000000/0xffffffff",
            "COMMIT",
            "*nat",
            f":{_SOURCES} - [0:0]",
            "-A POSTROUTING -m mark --mark 0x12000000 -j ACCEPT",
            f"-A POSTROUTING -j {_SOURCES}",
            *(f"-A {_SOURCES} {_source_rule(number)}" for number in crowd.here()),
            "COMMIT",
        ]
    )


def changed_sets(number: int, *, crowd: Crowd, back: bool) -> str:
    """Entries that one of the node's own policies loses and gains when it changes; `back`: when it changes back."""
    name = set_name(number)
    before, after = (_entries(crowd, number, changed=changed) for changed in (back, not back))
    return _text(
        [
            *(f"del {name}-{kind} {entry}" for kind, entry in before if (kind, entry) not in after),
            *(f"add {name}-{kind} {entry}" for kind, entry in after if (kind, entry) not in before),
        ]
    )


def changed_rules(number: int, *, back: bool) -> str:
    """For `iptables-restore --noflush`: the policy's one rule anew, in its place."""
    return _text(["*nat", f"-R {_SOURCES} {number + 1} {_source_rule(number, changed=not back)}", "COMMIT"])


def set_name(number: int) -> str:
    return f"egress-v4-{number:04d}"


def _source_rule(number: int, *, changed: bool = False) -> str:
    return f"{_MATCH.format(set_name(number))} -j SNAT --to-source {eip_address(number, changed=changed)}"


def _sets(crowd: Crowd, number: int) -> Iterator[str]:
    name = set_name(number)
    yield f"create {name}-src hash:net family inet"
    yield f"create {name}-dst hash:net family inet"
    for kind, entry in _entries(crowd, number, changed=False):
        yield f"add {name}-{kind} {entry}"


def _entries(crowd: Crowd, number: int, *, changed: bool) -> list[tuple[str, str]]:
    return [
        *(("src", str(pod)) for pod in crowd.pods(number, replaced=int(changed))),
        *(("dst", str(network)) for network in destinations(number, changed=changed)),
    ]


def _text(lines: Iterator[str] | list[str]) -> str:
    return "\n".join([*lines, ""])
