"""What the EIP agent's tables decide about a packet of a pod, by the sets of a dump. Pure.

The lookups are those of `coil.eip.eip_table`: the source gives a class, class and destination a policy, and the policy
a way. What connections bear is not looked at, as it says the same.
"""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

from coil.eip.eip_set import (
    ALIVE,
    CLOSED,
    CURRENT,
    EVERYWHERE,
    GUARDED_ALL,
    HERE,
    MOST_POLICIES,
    NEXT,
    NODE_IPS,
    SETS,
    number_word,
    shard_of,
)
from coil.kernel.family import Family, IPAddress
from kubectl_coil.trace.nft_set import NftSets


class WayKind(StrEnum):
    NONE = "none"
    """No policy concerns it."""
    TUNNEL = "tunnel"
    HERE = "here"
    FENCED = "fenced"
    """It would leave here, and the node's lease has run out."""
    CLOSED = "closed"
    """No node carries it."""
    HELD = "held"
    """Nobody knows yet which policies select its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """`mark` leads to the gateway node; `eip` is the source address that this node gives it, None: the node's own."""

    kind: WayKind
    policy: str = ""
    mark: int = 0
    eip: IPAddress | None = None
    node_ip: bool = False


def find_way(sets: NftSets, source: IPAddress, destination: IPAddress, *, sender: int | None = None) -> Way:
    """Of a packet that begins a connection. It comes through the tunnel from the node with the mark `sender`, or else
    from a pod of this node.
    """
    family = Family.of(source)
    names, word = SETS[family], f"ipv{source.version}"
    if names.classes not in sets:
        return Way(kind=WayKind.NONE)
    selected = sets.get(names.classes, source) if sender is None else sets.get(names.remote_classes, sender, source)
    class_ = _first(selected, sets.get(names.subnet_classes, source))
    if class_ is None:
        known = sets.has(CURRENT, word) or sets.has(names.known, source)
        held = not known and _is_guarded(sets, destination)
        return Way(kind=WayKind.HELD if held else WayKind.NONE)
    policy = _policy(sets, family, class_, destination)
    mark = None if policy is None else sets.get(names.ways, policy)
    if policy is None or mark is None:
        return Way(kind=WayKind.NONE)
    if mark != HERE:
        return Way(kind=WayKind.CLOSED if mark == CLOSED else WayKind.TUNNEL, policy=policy, mark=mark)
    eip = sets.get(names.eips, policy)
    return Way(
        kind=WayKind.HERE if sets.has(ALIVE, word) else WayKind.FENCED,
        policy=policy,
        mark=mark,
        eip=None if eip is None else ip_address(eip),
        node_ip=sets.has(NODE_IPS, policy),
    )


def _policy(sets: NftSets, family: Family, class_: str, destination: IPAddress) -> str | None:
    """The first one of the class that has the destination."""
    names = SETS[family]
    in_cluster = sets.has(names.cluster, destination)
    following: str | None = class_
    for _ in range(MOST_POLICIES):
        if following is None:
            break
        policy = number_word(int(following.partition(":")[0], 16))
        ranges = names.cluster_ranges if in_cluster else names.ranges[shard_of(policy)]
        if sets.get(ranges, policy, destination) is not None:
            return policy
        if not in_cluster and sets.get(EVERYWHERE, policy) is not None:
            return policy
        following = _first(sets.get(NEXT, following))
    return None


def _is_guarded(sets: NftSets, destination: IPAddress) -> bool:
    """Whether a policy that fails closed has the destination."""
    names = SETS[Family.of(destination)]
    if sets.has(names.cluster, destination):
        return sets.has(names.guarded_cluster, destination)
    return sets.has(names.guarded, destination) or sets.has(GUARDED_ALL, f"ipv{destination.version}")


def _first(*found: Any | None) -> str | None:
    return next((str(each) for each in found if each is not None), None)
