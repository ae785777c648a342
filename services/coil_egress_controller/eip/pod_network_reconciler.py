"""Looks for pods whose addresses are in no network that is known as the cluster's own, and says so in policies' status.

A policy without destinations applies to all that leaves the cluster, so what its pods send to such a pod on another
node leaves it by the gateway: pods do not reach each other, and nothing else tells why. Looked at are the pods that
policies select: where their addresses are from, those of other pods are from, too. The keys are those of policies.
"""

from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address
from typing import Final, TypeVar

from coil.crd.builtin import ConfigMap, Node
from coil.crd.egress_gateway_policy import EgressEndpointSlice, EgressGatewayPolicy
from coil.crd.meta import Condition
from coil.crd.resource import object_key
from coil.egress.cluster_networks import (
    POD_AND_SERVICE_NETWORKS,
    NetworkSet,
    collect_node_networks,
    parse_cluster_networks,
)
from coil.eip.gateway_status import POD_NETWORKS_KNOWN, stray_condition
from coil.kernel.family import IPNetwork
from coil.manager.term import Channel, Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, Result
from coil_egress_controller.eip.slice_reconciler import BY_POLICY, policies_of

_T = TypeVar("_T", Node, ConfigMap)
BATCH_WINDOW: Final = 5.0
"""Seconds for which changes are gathered: nothing depends on it but what people read."""


class PodNetworkReconciler:
    """Of one term. `cluster_networks` is the cache of the ConfigMap that agents read, `extra` what they are told beside
    it. The key of each policy for which `conditions` has another answer than before is sent to `changed`.
    """

    def __init__(
        self,
        *,
        policies: Cache[EgressGatewayPolicy],
        slices: Cache[EgressEndpointSlice],
        nodes: Cache[Node],
        cluster_networks: Cache[ConfigMap],
        extra: Collection[IPNetwork],
        changed: Channel[str],
    ) -> None:
        self._policies = policies
        self._slices = slices
        self._nodes = nodes
        self._cluster_networks = cluster_networks
        self._extra = extra
        self._changed = changed
        self._networks: NetworkSet | None = None  # to be collected
        self._strays: dict[str, str] = {}
        """Of each policy that was looked at, by key, a pod in words, or "" for none."""

    def setup(self, term: Term, *, resync: float) -> None:
        controller = term.controller("podnetwork", self.reconcile)
        controller.watch(self._policies, self._of_policy, batch_window=BATCH_WINDOW)
        controller.watch(self._slices, self._of_slice, batch_window=BATCH_WINDOW)
        controller.watch(self._nodes, self._of_node, batch_window=BATCH_WINDOW)
        controller.watch(self._cluster_networks, self._of_config_map, batch_window=BATCH_WINDOW)
        controller.resync(self._all, every=resync)

    def conditions(self, policy: EgressGatewayPolicy) -> Iterable[Condition]:
        """What is to be said in the status of the policy: what it says already, as long as it was not looked at."""
        stray = self._strays.get(object_key(policy.metadata))
        if stray is None:
            return [condition for condition in policy.status.conditions if condition.type == POD_NETWORKS_KNOWN]
        return [stray_condition(stray)] if stray else []

    async def reconcile(self, key: str) -> Result:
        """Look at the pods of the policy of that key."""
        policy = self._policies.get(key)
        if policy is None:
            self._strays.pop(key, None)
            return DONE
        stray = "" if policy.spec.dest_subnet else self._find_stray(key)
        if stray != self._strays.get(key):
            self._strays[key] = stray
            self._changed.send(key)
        return DONE

    def _find_stray(self, key: str) -> str:
        if self._networks is None:
            self._networks = NetworkSet((*self._extra, *collect_node_networks(self._nodes.items()), *self._told()))
        # The one that was told of before, as long as it is one.
        found: set[str] = set()
        for slice_ in self._slices.by_index(BY_POLICY, key):
            for endpoint in slice_.endpoints:
                for address in (*endpoint.ipv4_list, *endpoint.ipv6_list):
                    if not self._is_known(address):
                        found.add(f"{address} of the pod {endpoint.pod_name}")
        before = self._strays.get(key, "")
        return before if before in found else min(found, default="")

    def _is_known(self, address: str) -> bool:
        try:
            return self._networks is None or ip_address(address) in self._networks
        except ValueError:
            return True  # others report it

    def _told(self) -> Iterable[IPNetwork]:
        for config_map in self._cluster_networks.items():
            yield from parse_cluster_networks(config_map.data, POD_AND_SERVICE_NETWORKS)

    def _all(self) -> Iterable[str]:
        return [object_key(policy.metadata) for policy in self._policies.items()]

    def _of_policy(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> Iterable[str]:
        present = new or old
        if present is not None and (old is None or new is None or old.spec.dest_subnet != new.spec.dest_subnet):
            yield object_key(present.metadata)

    def _of_slice(self, old: EgressEndpointSlice | None, new: EgressEndpointSlice | None) -> Iterable[str]:
        for present in filter(None, (old, new)):
            yield from policies_of(present)

    def _of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        return self._of_networks(old, new, lambda node: (node.addresses(), node.spec.pod_cidrs))

    def _of_config_map(self, old: ConfigMap | None, new: ConfigMap | None) -> Iterable[str]:
        return self._of_networks(old, new, lambda config_map: config_map.data.get(POD_AND_SERVICE_NETWORKS))

    def _of_networks(self, old: _T | None, new: _T | None, networks_of: Callable[[_T], object]) -> Iterable[str]:
        before, after = (None if each is None else networks_of(each) for each in (old, new))
        if before == after:
            return ()
        self._networks = None
        return self._all()
