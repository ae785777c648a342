"""Which subnets the cluster uses, how many addresses they have left, and when they will have none.

They are those that interfaces with the cluster's tag are in, and those of the same VPC and zone that nodes may also
make interfaces in, by the tag `kubernetes.io/role/cni`. In which subnets there are interfaces is asked for rarely: in a
large cluster the answer has dozens of pages, and another subnet is a rare event.
"""

from collections import Counter
from typing import Final

from coil.aws.ec2 import Ec2, SubnetRecord
from coil.eni.interface import SubnetId
from coil.eni.subnet_forecast import FreeHistory, Look
from coil.eni.tag import CLUSTER_TAG, SUBNET_TAG, SUBNET_VALUE
from coil_ipam_controller.eni.view import Deps, SubnetLevel, SubnetState

USE_SECONDS: Final = 600.0
"""Between two looks at all interfaces."""


class SubnetWatch:
    """One for each term."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._view = deps.view
        self._used: Counter[SubnetId] = Counter()
        self._used_at = float("-inf")
        self._places: dict[SubnetId, tuple[str, str]] = {}
        """VPC and zone of the subnets that are used."""
        self._histories: dict[SubnetId, FreeHistory] = {}
        self._levels: dict[SubnetId, SubnetLevel] = {}

    async def round(self, ec2: Ec2) -> None:
        """Look at all subnets once. Raises Ec2Error, and then the picture stays what it was."""
        if not self._used or self._deps.clock() - self._used_at >= USE_SECONDS:
            await self._look_for_use(ec2)
        records: list[SubnetRecord] = []
        for vpc, zone in sorted(set(self._places.values())):
            records += [each for each in await ec2.find_subnets(vpc, zone, {}) if self._concerns(each)]
        at = self._deps.clock()
        states = [self._state(each, at) for each in sorted(records, key=lambda each: each.id)]
        present = {each.id for each in states}
        for gone in self._histories.keys() - present:
            del self._histories[gone]
            self._levels.pop(gone, None)
        self._view.subnets, self._view.seen_at = tuple(states), self._deps.now()
        for state in states:
            self._report(state)

    async def _look_for_use(self, ec2: Ec2) -> None:
        found = await ec2.find_interfaces({CLUSTER_TAG: self._view.cluster})
        used = Counter(each.subnet for each in found)
        places = {subnet: self._places.get(subnet) or await _place(ec2, subnet) for subnet in sorted(used)}
        self._places, self._used, self._used_at = places, used, self._deps.clock()

    def _concerns(self, record: SubnetRecord) -> bool:
        return record.id in self._used or _tagged(record)

    def _state(self, record: SubnetRecord, at: float) -> SubnetState:
        history = self._histories.setdefault(record.id, FreeHistory())
        history.note(Look(at, record.free))
        return SubnetState(
            id=record.id,
            zone=record.zone,
            ipv4=record.ipv4,
            free=record.free,
            interfaces=self._used[record.id],
            tagged=_tagged(record),
            consumption=history.consumption(),
        )

    def _report(self, state: SubnetState) -> None:
        level, before = state.level, self._levels.get(state.id, SubnetLevel.UNKNOWN)
        if level in (before, SubnetLevel.UNKNOWN):
            return
        self._levels[state.id] = level
        recorder = self._deps.recorder
        place = f"subnet {state.id} ({state.ipv4}, {state.zone})"
        log = self._deps.log.bind(subnet=state.id, zone=state.zone, free=state.free, total=state.total)
        match level:
            case SubnetLevel.DRY:
                message = f"{place} has no free address: nodes get none from it, and pods there wait"
                recorder.warn(self._deps.subject, reason="SubnetDry", message=message)
                log.error("subnet is dry")
            case SubnetLevel.NEAR:
                message = f"{place} will have no free address within an hour"
                recorder.warn(self._deps.subject, reason="SubnetNearlyDry", message=message)
                log.warning("subnet will be dry within an hour", seconds=state.dry_in)
            case _ if before in (SubnetLevel.DRY, SubnetLevel.NEAR):
                recorder.note(self._deps.subject, reason="SubnetHasRoom", message=f"{place} has room again")
                log.info("subnet has room again")


def _tagged(record: SubnetRecord) -> bool:
    return record.tags.get(SUBNET_TAG) == SUBNET_VALUE


async def _place(ec2: Ec2, subnet: SubnetId) -> tuple[str, str]:
    record = await ec2.subnet(subnet)
    return record.vpc, record.zone
