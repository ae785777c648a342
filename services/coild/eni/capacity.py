"""How many addresses the node can have for pods: what EC2 allows the instance's type, and what of it is Coil's to use.

    DescribeInstanceTypes ─► limits ─┐
    AttachmentLimitExceeded ─────────┴► less what others have attached ─► room ─► most_addresses (`ip_max`)

Types with the hypervisor Xen can have no prefixes, and EC2 refuses them for ever. A node of such a type asks for single
addresses, whatever its admin has configured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from coil.aws.ec2 import InstanceLimits
from coil.eni.ledger import InterfaceUse
from coil.eni.warm_pool import ADDRESSES_OF_PREFIX, NodeLimits, WarmTargets, max_addresses
from coild.eni.inventory import Inventory
from coild.eni.settings import EniSettings
from coild.eni.store import EniStore

LEARNT_SECONDS: Final = 600.0
"""For which a limit that EC2 has shown stands, against what it tells of the instance's type."""
LINK_SECONDS: Final = 60.0
"""After which an interface whose link has not come up is not counted upon."""


@dataclass(slots=True, kw_only=True)
class NodeCapacity:
    """One per process. `clock` never jumps."""

    settings: EniSettings
    inventory: Inventory
    store: EniStore
    clock: Callable[[], float]
    limits: InstanceLimits | None = None
    """What EC2 allows the instance's type; None until it has told."""
    pods: int | None = None
    """How many pods the Node may run, as an earlier process knew it."""
    _shown: tuple[int, float] | None = None
    """How many interfaces EC2 has allowed when it refused one more, and until when that is believed."""

    def note_refusal(self) -> None:
        """EC2 has refused to attach one more interface."""
        self._shown = self.inventory.attached_count, self.clock() + LEARNT_SECONDS

    @property
    def refusal_left(self) -> float | None:
        """In how many seconds a limit that EC2 has shown does not stand any more; None if none does."""
        left = None if self._shown is None else self._shown[1] - self.clock()
        return left if left is not None and left > 0 else None

    # --- what is to be had

    @property
    def prefixes(self) -> bool:
        """Whether EC2 is asked for prefixes."""
        return self.settings.prefixes and (self.limits is None or self.limits.prefixes)

    @property
    def range_size(self) -> int:
        """Addresses of a range that EC2 is asked for first."""
        return ADDRESSES_OF_PREFIX if self.prefixes else 1

    @property
    def targets(self) -> WarmTargets:
        """The admin's, without what this type of instance cannot have."""
        targets = self.settings.targets
        return targets if self.prefixes else replace(targets, prefixes=None)

    @property
    def told(self) -> NodeLimits:
        """As EC2 and the Node tell of them, for the next process."""
        limits = self.limits or InstanceLimits(interfaces=1, addresses=1)
        bare = NodeLimits(interfaces=limits.interfaces, slots=limits.addresses, pods=0, prefixes=limits.prefixes)
        return replace(bare, pods=self._pods_of(bare))

    @property
    def node_limits(self) -> NodeLimits:
        """As far as they are known, whoever has the interfaces."""
        limits = self.told
        if self._shown is None or self.refusal_left is None:
            return limits
        limits = replace(limits, interfaces=min(limits.interfaces, self._shown[0]))
        return replace(limits, pods=self._pods_of(limits))

    @property
    def most_addresses(self) -> int | None:
        """The most that pods of the node can have, beside what others have attached; None until EC2 has told, and for
        IPv6, of which there is always enough.
        """
        if self.limits is None or self.settings.version == 6:
            return None
        room = self.node_limits.less(self._taken_by_others)
        most = self.settings.targets.max_interfaces
        if most is not None:
            room = replace(room, interfaces=min(room.interfaces, most))
        return max_addresses(room, range_size=self.range_size)

    # --- what can be counted upon now

    def uses(self) -> list[InterfaceUse]:
        """Interfaces that can be counted upon."""
        return [use for use in self.store.uses() if self._counts(use)]

    @property
    def room(self) -> NodeLimits:
        """The limits, without the places that are taken by what cannot be counted upon."""
        uses = self.store.uses()
        return self.node_limits.less(self.inventory.foreign + len(uses) - sum(map(self._counts, uses)))

    @property
    def next_doubtful_link(self) -> float | None:
        """In how many seconds the next interface without a link is not to be counted upon any more."""
        ages = (self.inventory.age(use.interface.id, now=self.clock()) for use in self.store.uses() if not use.up)
        return min((LINK_SECONDS - age for age in ages if age <= LINK_SECONDS), default=None)

    @property
    def exhausted(self) -> str:
        """Why there is nothing more, where all is in use."""
        limits = self.node_limits
        interfaces = min(limits.interfaces, self.settings.targets.max_interfaces or limits.interfaces)
        others = self._taken_by_others
        foreign = f", {others} of them attached by others or not to be managed" if others else ""
        return (
            f"all addresses are taken: the instance may have {limits.interfaces} interfaces{foreign}, "
            f"{interfaces} are allowed for pods, with {limits.slots - 1} addresses or prefixes each"
        )

    # --- inside

    def _pods_of(self, limits: NodeLimits) -> int:
        """How many pods the Node may run; where nobody has said, as many as can have addresses."""
        return self.store.pods_limit or self.pods or max_addresses(limits, range_size=self.range_size)

    @property
    def _taken_by_others(self) -> int:
        """How many places of interfaces are not Coil's to use."""
        return self.inventory.foreign + len(self.inventory.own()) - len(self.inventory.managed())

    def _counts(self, use: InterfaceUse) -> bool:
        stalled = not use.up and self.inventory.age(use.interface.id, now=self.clock()) > LINK_SECONDS
        return use.interface.managed and not stalled
