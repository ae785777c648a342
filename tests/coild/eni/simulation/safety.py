"""What must not happen on any node, checked at every event: an assertion here is a pod that gets another's packets."""

from collections.abc import Callable
from dataclasses import dataclass, field

from coil.aws.ec2 import InstanceId
from coil.kernel.family import IPAddress
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coild.eni.simulation.trace import COOLDOWN

ROUNDING = 1e-6


@dataclass(slots=True)
class Safety:
    """One for all nodes. `clock` is the event loop's."""

    ec2: MemoryEc2
    clock: Callable[[], float]
    holders: dict[IPAddress, str] = field(default_factory=dict)
    """Which pod has which address in the kernel."""
    _held: dict[InstanceId, set[IPAddress]] = field(default_factory=dict)
    _freed: dict[IPAddress, float] = field(default_factory=dict)

    def watch(self, instance: InstanceId) -> None:
        """Of this instance, nothing may be taken away that a pod has."""
        self.ec2.subscribe(instance, lambda: self._check_ranges(instance))

    def take(self, pod: str, address: IPAddress, instance: InstanceId) -> None:
        """The pod has the address now."""
        assert address not in self.holders, f"{pod} and {self.holders[address]} have {address}"
        freed = self._freed.get(address)
        assert freed is None or self.clock() - freed >= COOLDOWN - ROUNDING, f"{pod} has {address}, which is cooling"
        self.holders[address] = pod
        self._held.setdefault(instance, set()).add(address)
        assert address in self._addresses(instance), f"{pod} has {address}, which is not its node's"

    def release(self, address: IPAddress, instance: InstanceId) -> None:
        """Its pod is gone."""
        del self.holders[address]
        self._held[instance].remove(address)
        self._freed[address] = self.clock()

    def check_end(self) -> None:
        """After all pods: no interface is left that would stay when its instance ends."""
        for record in self.ec2.records():
            assert record.instance is not None, f"{record.id} is left behind"
            assert record.deleted_with_instance, f"{record.id} would outlive {record.instance}"

    def _check_ranges(self, instance: InstanceId) -> None:
        taken = self._held.get(instance, set()) - self._addresses(instance)
        assert not taken, f"taken from pods: {[(str(address), self.holders[address]) for address in taken]}"
        now = self.clock()
        self._freed = {address: at for address, at in self._freed.items() if now - at < COOLDOWN - ROUNDING}
        for address in self._freed.keys() - self.holders.keys():
            assert self._is_assigned(address), f"{address} was given back while it was cooling down"

    def _addresses(self, instance: InstanceId) -> frozenset[IPAddress]:
        records = self.ec2.describe_interfaces(instance, {}, "")
        return frozenset(address for record in records for network in record.ranges for address in network)

    def _is_assigned(self, address: IPAddress) -> bool:
        return any(address in network for record in self.ec2.records() for network in record.ranges)
