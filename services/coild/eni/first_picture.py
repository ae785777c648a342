"""What counts of the node's interfaces while EC2 has not answered: what the journal and the metadata service both have.

The journal has what EC2 confirmed, without what it was asked to take; the metadata service is late. An address that
both have is the node's as far as anybody can know. Of an interface that the journal does not have nobody knows whose it
is, but for the primary one, which is always the node's: the one that has the instance's `mac` in metadata. Pure.
"""

from collections.abc import Collection
from dataclasses import replace

from coil.aws.metadata import MetadataInterface
from coil.eni.interface import NetworkInterface
from coil.eni.node_plan import AttachedInterface
from coil.kernel.link import MacAddress
from coild.eni.inventory import told_ranges
from coild.eni.journal import Checkpoint


def guess_interfaces(
    found: Collection[MetadataInterface] | None, checkpoint: Checkpoint | None, *, primary: MacAddress, version: int
) -> tuple[AttachedInterface, ...]:
    """`found` is None where the metadata service is silent: then the journal alone counts. `primary` is "" while nobody
    has named the primary interface.
    """
    known = {each.interface.id: each for each in checkpoint.interfaces} if checkpoint is not None else {}
    if found is None:
        return tuple(known.values())
    guessed = []
    for each in found:
        described = _describe(each, is_primary=each.mac == primary, version=version)
        if described is None:
            continue
        if (before := known.get(each.interface)) is not None:
            shared = described.interface.ranges & before.interface.ranges
            interface = replace(described.interface, ranges=shared, managed=before.interface.managed)
            guessed.append(replace(described, interface=interface))
        elif described.is_primary:
            guessed.append(described)
    return tuple(guessed)


def _describe(found: MetadataInterface, *, is_primary: bool, version: int) -> AttachedInterface | None:
    """None for an interface without IPv4, which has no pod's address."""
    if not found.local_ipv4s or found.subnet_ipv4 is None:
        return None
    interface = NetworkInterface(
        id=found.interface,
        mac=found.mac,
        device_number=found.device_number,
        subnet=found.subnet,
        primary=found.local_ipv4s[0],
        ranges=frozenset(each for each in told_ranges(found) if each.version == version),
        is_primary=is_primary,
    )
    return AttachedInterface(interface=interface, subnet=found.subnet_ipv4)
