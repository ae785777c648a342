"""Keeps a gateway's addresses where egressgateway has given them, until the policies that have them are there.

egressgateway writes EgressPolicies and EgressClusterPolicies into a gateway's status; here, EgressGatewayPolicies stand
for them, which the controller first has to create. A gateway that is decided on before would forget who had what, and
whoever is to let these addresses through would see others. A gateway that this controller has decided on never waits:
tenants could hold up its failover by deleting what stands for their policies.
"""

from collections.abc import Callable
from typing import Final

from coil.crd.egress_gateway import EgressGateway, PolicyRef
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EgressClusterPolicy, EgressPolicy
from coil.eip.policy_mirror import BY_SOURCE, source_value
from coil.reconcile.cache import Cache, describe_unsynced

PATIENCE: Final = 10.0
"""Seconds for which a gateway waits: a policy may be refused, and nodes may fail meanwhile."""
_LOOK_AGAIN: Final = 0.1


class TakeoverDelay:
    """Of one term. `policies` has the index BY_SOURCE; `clock` gives monotonic seconds."""

    def __init__(
        self,
        *,
        policies: Cache[EgressGatewayPolicy],
        egress_policies: Cache[EgressPolicy],
        cluster_policies: Cache[EgressClusterPolicy],
        clock: Callable[[], float],
    ) -> None:
        self._policies = policies
        self._egress_policies = egress_policies
        self._cluster_policies = cluster_policies
        self._clock = clock
        self._since: dict[str, float] = {}
        """By gateway, when it was first seen to wait."""

    async def __call__(self, gateway: EgressGateway) -> float:
        """The seconds until it is worthwhile to ask again; 0 if the gateway can be decided on."""
        name = gateway.metadata.name
        # Of a status, egressgateway writes no conditions, and this controller always does.
        if gateway.status.conditions or not self._is_awaited(gateway):
            self._since.pop(name, None)
            return 0.0
        since = self._since.setdefault(name, self._clock())
        return _LOOK_AGAIN if self._clock() - since < PATIENCE else 0.0

    def _is_awaited(self, gateway: EgressGateway) -> bool:
        listed = (ref for node in gateway.status.node_list for entry in node.eips for ref in entry.policies)
        unknown = [ref for ref in listed if self._policies.get(f"{ref.namespace}/{ref.name}") is None]
        if not unknown:
            return False
        if any(describe_unsynced(cache, optional=True) for cache in (self._egress_policies, self._cluster_policies)):
            return True
        return any(map(self._is_to_come, unknown))

    def _is_to_come(self, ref: PolicyRef) -> bool:
        """Whether a policy is still to be created for what egressgateway means."""
        if ref.namespace:
            return self._egress_policies.get(f"{ref.namespace}/{ref.name}") is not None
        source = source_value(EGRESS_CLUSTER_POLICIES.kind, ref.name)
        return self._cluster_policies.get(ref.name) is not None and not self._policies.by_index(BY_SOURCE, source)
