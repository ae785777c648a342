"""What is put right periodically, as others may have changed it: rules, sysctls, routes to pods, addresses
without a veth.
"""

import asyncio

from structlog.typing import FilteringBoundLogger

from coil.kube.errors import ApiError
from coil.netlink.error import NetlinkError
from coil.netlink.host import HostNetwork
from coil.podnet.plan import RoutePolicy, plan_forwarding, plan_rules
from coild.addresses.block_release import StuckRelease
from coild.pods.pod_service import PodService


class Sweep:
    """One per process. Every part is idempotent, and a part that fails is tried again with the next sweep."""

    def __init__(
        self,
        *,
        network: HostNetwork,
        pods: PodService,
        late: StuckRelease,
        policy: RoutePolicy,
        log: FilteringBoundLogger,
    ) -> None:
        self._network = network
        self._pods = pods
        self._late = late
        self._policy = policy
        self._log = log

    async def kernel(self) -> None:
        """Forwarding on, and the lookup of the pod table in place. Raises NetlinkError."""
        await self._network.ensure_sysctls(plan_forwarding())
        if changes := await self._network.ensure_rules(plan_rules(self._policy)):
            self._log.info("rules set", added=len(changes.adds), removed=len(changes.deletes))

    async def run(self, interval: float) -> None:
        """Sweep every `interval` seconds, for ever."""
        while True:
            await asyncio.sleep(interval)
            self._late.report()
            try:
                await self.kernel()
                await self._pods.restore_routes()
                await self._pods.collect()
            except (NetlinkError, ApiError) as error:
                self._log.warning("sweep not complete", why=str(error))
