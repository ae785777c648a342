"""Addresses in objects, as far as they are addresses: whoever may write an object may have written anything."""

from collections.abc import Callable, Set
from ipaddress import ip_address, ip_network
from typing import Final, TypeVar

from coil.crd.builtin import Pod
from coil.kernel.family import IPAddress, IPNetwork

ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods whose addresses may be others' by now."""

T = TypeVar("T")


def addresses_of(pod: Pod) -> Set[IPAddress]:
    """In the order of its status."""
    found = (_parse(ip_address, entry.ip) for entry in pod.status.pod_ips)
    return dict.fromkeys(address for address in found if address is not None).keys()


def has_own_network(pod: Pod) -> bool:
    """Whether the pod has a network of its own, or will have one, and has not ended."""
    return not pod.spec.host_network and pod.status.phase not in ENDED


def has_own_addresses(pod: Pod) -> bool:
    """Whether the pod shows addresses of its own."""
    return bool(pod.status.pod_ips) and has_own_network(pod)


def networks_of(*texts: str | None) -> list[IPNetwork]:
    """Those that are given and are networks."""
    return [network for text in texts if text and (network := _parse(ip_network, text)) is not None]


def _parse(parse: Callable[[str], T], text: str) -> T | None:
    try:
        return parse(text)
    except ValueError:
        return None
