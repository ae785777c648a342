"""A VPC in memory, as far as decisions of the warm pool go: what EC2 would have made of each."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, ip_address
from itertools import count

from coil.eni.interface import InterfaceId, NetworkInterface, SubnetId
from coil.eni.ledger import EniLedger
from coil.eni.warm_pool import AssignRanges, CreateInterface, DeleteInterface, NodeLimits, Step, UnassignRanges
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.link import MacAddress

SUBNET = SubnetId("subnet-1")
COOLDOWN = 30.0


def key(number: int) -> AttachmentKey:
    return AttachmentKey(ContainerId(f"c{number}"), "eth0")


def interface(device: int, *ranges: str) -> NetworkInterface:
    """One whose own address is 10.0.<device>.1; the primary one is device 0."""
    return NetworkInterface(
        id=InterfaceId(f"eni-{device}"),
        mac=MacAddress(f"02:00:00:00:00:{device:02x}"),
        device_number=device,
        subnet=SUBNET,
        primary=IPv4Address(f"10.0.{device}.1"),
        ranges=frozenset(map(IPv4Network, ranges)),
        is_primary=device == 0,
    )


class Vpc:
    """One node in a subnet without end. The ledger is told of every change at once."""

    def __init__(self, limits: NodeLimits, *, range_size: int = 1) -> None:
        self.limits = limits
        self.range_size = range_size
        self.ledger = EniLedger(cooldown=COOLDOWN)
        self.interfaces = {0: interface(0)}
        self.calls = 0
        self._ranges = count(int(ip_address("10.128.0.0")), range_size)
        self._devices = count(1)
        self.tell()

    def tell(self) -> None:
        """The ledger learns of what is there."""
        found = self.interfaces.values()
        assert self.ledger.update(found, up=[each.id for each in found]) == []

    def carry_out(self, step: Step, *, now: float) -> None:
        """As EC2 would, within its limits."""
        self.calls += 1
        match step:
            case AssignRanges(which, number):
                self._assign(self._device(which), number)
            case CreateInterface(number):
                device = next(self._devices)
                self.interfaces[device] = interface(device)
                assert len(self.interfaces) <= self.limits.interfaces
                self._assign(device, number)
            case UnassignRanges(which, ranges):
                self.ledger.withdraw(ranges, now=now)
                device = self._device(which)
                known = self.interfaces[device]
                assert set(ranges) <= known.ranges
                self.interfaces[device] = replace(known, ranges=known.ranges - set(ranges))
            case DeleteInterface(which, ranges):
                self.ledger.withdraw(ranges, now=now)
                device = self._device(which)
                assert device != 0
                assert set(ranges) == self.interfaces.pop(device).ranges
        self.tell()

    def _device(self, which: InterfaceId) -> int:
        return next(device for device, known in self.interfaces.items() if known.id == which)

    def _assign(self, device: int, number: int) -> None:
        assert number > 0
        length = {1: 32, 16: 28}[self.range_size]
        new = {IPv4Network((next(self._ranges), length)) for _ in range(number)}
        known = self.interfaces[device]
        self.interfaces[device] = replace(known, ranges=known.ranges | new)
        assert self.interfaces[device].slots_used <= self.limits.slots
