"""What a process leaves to the next one of the node's interfaces, and what that one makes of it. Pure.

    what EC2 describes, and has confirmed ─► take_checkpoint ─► EniJournal ─► checkpoint_of ─► recorded_interfaces

The checkpoint lacks what EC2 was asked to take, and what is not proven to be the node's: what it has may be given.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from ipaddress import IPv4Network

from coil.aws.ec2 import InstanceId, InterfaceRecord
from coil.aws.metadata import InstanceIdentity
from coil.eni.node_plan import AttachedInterface
from coil.eni.tag import NO_MANAGE_TAG
from coil.eni.warm_pool import NodeLimits
from coil.kernel.family import IPNetwork
from coil.kernel.link import MacAddress
from coild.eni.journal import Checkpoint, EniJournal

SAME_MOMENT_SECONDS = 1.0
"""By which two clocks may differ over one moment: that is no reason to write the journal anew."""


def take_checkpoint(  # noqa: PLR0913 - a checkpoint has that many parts
    identity: InstanceIdentity,
    *,
    vpc: str,
    inside: Collection[IPv4Network],
    limits: NodeLimits,
    interfaces: Collection[AttachedInterface],
    left_out: frozenset[IPNetwork],
    spares: bool,
    written: float | None,
    before: Checkpoint | None,
) -> Checkpoint:
    """What there is, without the ranges that are `left_out`.

    `written` is when EC2 has confirmed the last change that descriptions may still lack, by the time of day in seconds;
    None if there is none. `before` is the checkpoint that this one follows.
    """
    at = written or 0.0
    if before is not None and abs(before.written - at) < SAME_MOMENT_SECONDS:
        at = before.written
    return Checkpoint(
        instance=identity.instance_id,
        instance_type=identity.instance_type,
        region=identity.region,
        zone=identity.zone,
        vpc=vpc,
        limits=limits,
        inside=tuple(sorted(inside)),
        spares=spares,
        interfaces=tuple(
            replace(each, interface=replace(each.interface, ranges=each.interface.ranges - left_out))
            for each in interfaces
        ),
        written=at,
    )


def checkpoint_of(journal: EniJournal, identity: InstanceIdentity) -> Checkpoint | None:
    """The instance's; None where the journal has none, or that of another instance, whose disk this one has."""
    checkpoint = journal.checkpoint
    return checkpoint if checkpoint is not None and checkpoint.instance == identity.instance_id else None


def recorded_interfaces(checkpoint: Checkpoint, *, tags: Mapping[str, str]) -> list[InterfaceRecord]:
    """The interfaces of the journal, as far as it knows what EC2 has of them: not their groups and attachments."""
    return [
        InterfaceRecord(
            id=each.interface.id,
            mac=each.interface.mac,
            status="in-use",
            subnet=each.interface.subnet,
            primary=each.interface.primary,
            ranges=each.interface.ranges,
            groups=(),
            tags=tags if each.interface.managed else {**tags, NO_MANAGE_TAG: "true"},
            instance=InstanceId(checkpoint.instance),
            device_number=each.interface.device_number,
            deleted_with_instance=True,
        )
        for each in checkpoint.interfaces
    ]


def identity_of(checkpoint: Checkpoint) -> InstanceIdentity:
    """Which instance an earlier process was on. Its account is not known, nor `mac` without the primary interface."""
    return InstanceIdentity(
        instance_id=InstanceId(checkpoint.instance),
        instance_type=checkpoint.instance_type,
        region=checkpoint.region,
        zone=checkpoint.zone,
        account="",
        mac=next((each.interface.mac for each in checkpoint.interfaces if each.is_primary), MacAddress("")),
    )
