"""What a replica that does not lead does about addresses that are nowhere: it leaves them to the leader for a moment,
and then moves them itself.

A leader that dies is replaced after its lease of 15 s at the earliest. One that is lost together with a gateway node,
as where it runs on that node, would leave the node's addresses unanswered for so long. They do not have to wait for an
election: that no address is at two nodes follows from the nodes' leases (`coil.eip.gateway_lease`) and the resource
versions that all writes are guarded by, whoever writes. A leader and any number of replicas that stand by may decide at
the same time; one of them is first, and the others plan again.

Two waits keep replicas out of a working leader's way: a lease is revoked `PATIENCE` later than the leader would, and
`PATIENCE` after its revocation the addresses are moved. All other changes are the leader's alone. So is a gateway whose
status names policies that exist and that this replica's cache does not show yet: what it decides without them would
take their addresses from them. Policies that are gone hold up nobody.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from coil.crd.egress_gateway import EgressGateway, GatewayNode
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.resource import object_key
from coil.eip.gateway_lease import GatewayLease
from coil.kube.api_client import ApiClient
from coil.reconcile.cache import Cache
from coil_egress_controller.eip.lease_monitor import CALL_SECONDS

PATIENCE: Final = 0.6
"""Seconds."""


class StandbyDelay:
    """Of one time of standing by. `clock` gives monotonic seconds."""

    def __init__(
        self,
        *,
        client: ApiClient,
        policies: Cache[EgressGatewayPolicy],
        lease_of: Callable[[str], GatewayLease | None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._policies = policies
        self._lease_of = lease_of
        self._clock = clock
        self._since: dict[str, float] = {}
        """By gateway, when its addresses were first seen at a node that has lost them."""

    async def __call__(self, gateway: EgressGateway) -> float | None:
        """The seconds for which the gateway is left to the leader; None: until something changes.

        Raises ApiError or TimeoutError where the API server does not say whether a policy is gone.
        """
        name = gateway.metadata.name
        if not any(map(self._is_lost, gateway.status.node_list)):
            self._since.pop(name, None)
            return None
        since = self._since.setdefault(name, self._clock())
        if (left := since + PATIENCE - self._clock()) > 0:
            return left
        return 0.0 if await self._knows_policies(gateway) else PATIENCE

    def _is_lost(self, node: GatewayNode) -> bool:
        """Whether addresses are listed at the node for a term that is over."""
        lease = self._lease_of(node.name)
        if lease is None or not any(entry.ipv4 or entry.ipv6 for entry in node.eips):
            return False
        return lease.term > node.term or (lease.term == node.term and not lease.held)

    async def _knows_policies(self, gateway: EgressGateway) -> bool:
        listed = {
            f"{policy.namespace}/{policy.name}"
            for node in gateway.status.node_list
            for entry in node.eips
            for policy in entry.policies
        }
        unknown = {key for key in listed if self._policies.get(key) is None}
        for namespace in sorted({key.partition("/")[0] for key in unknown}):
            async with asyncio.timeout(CALL_SECONDS):
                live = await self._client.list(EGRESS_GATEWAY_POLICIES, namespace=namespace)
            if any(object_key(policy.metadata) in unknown for policy in live):
                return False
        return True
