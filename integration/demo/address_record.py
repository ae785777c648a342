"""Who has each address of a VPC: what a node says on its page (`/ip-manager`) against what EC2 says. No input, no
output."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class AddressRecord:
    """An address that a pod has, or that cools down; `interface` is the one that it belongs to."""

    address: str
    interface: str
    state: str
    pod: str


def read_page(document: dict[str, Any]) -> set[AddressRecord]:
    """The addresses in use on a node, from the document that it serves."""
    return {
        AddressRecord(used["address"], interface["id"], used["state"], used["pod"] or "")
        for interface in document["interfaces"]
        for used in interface["used"]
    }


def find_contradictions(
    node: str, said: Collection[AddressRecord], expected: Collection[AddressRecord]
) -> Iterator[str]:
    """A sentence for each record that the node should not have, and for each that it lacks."""
    for record in sorted({*said} - {*expected}):
        yield f"{node} says of {record.address} on {record.interface} that it is {record.state} ({record.pod})"
    for record in sorted({*expected} - {*said}):
        yield f"{node} does not say of {record.address} on {record.interface} that it is {record.state} ({record.pod})"
