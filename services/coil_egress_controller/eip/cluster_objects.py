"""What says which addresses are the cluster's own, as admission of gateways and policies asks. Pure.

The networks are those that `coil_egress_controller.egress` publishes for the nodes, by the same functions, with whose
they are.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import ConfigMap, Node, Service, ServiceCidr
from coil.crd.cidr import OwnedNetwork
from coil.crd.egress_cluster_info import EgressClusterInfo
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.eip_conflict import Taken, collect_taken
from coil.crd.foreign_network import CalicoPool, CiliumNode
from coil.crd.resource import NamespacedName
from coil.crd.subnet_end import SubnetEnds, collect_subnet_ends
from coil.egress.cluster_networks import find_added_networks, find_foreign_networks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What the controller was told at its start. `tunnels` are the networks of the tunnels between nodes, `given` are
    networks of the cluster that no object names. `cluster_networks` is the ConfigMap in which an administrator may add
    some, if any is; `serves_cluster_info`: so may the EgressClusterInfo.
    """

    tunnels: Collection[IPv4Network | IPv6Network] = ()
    given: Collection[OwnedNetwork] = ()
    cluster_networks: NamespacedName | None = None
    serves_cluster_info: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObjects:
    """As they were at one time. `services` has the one of the API server, the ConfigMaps are one or none each."""

    settings: ClusterSettings
    nodes: Sequence[Node]
    pools: Sequence[AddressPool]
    service_cidrs: Sequence[ServiceCidr]
    services: Sequence[Service]
    tunnels: Sequence[EgressTunnel]
    infos: Sequence[EgressClusterInfo]
    calico_pools: Sequence[CalicoPool]
    cilium_nodes: Sequence[CiliumNode]
    cilium: Sequence[ConfigMap]
    kubeadm: Sequence[ConfigMap]
    kube_proxy: Sequence[ConfigMap]
    config_maps: Sequence[ConfigMap]

    def taken(self) -> Taken:
        """What no gateway may have: the addresses of Nodes, pods, Services and tunnels.

        Without what administrators have added, as they add the nodes' own network as well, for policies to leave
        their hosts alone, and a gateway's addresses are in that network.
        """
        return self._collect()

    def inner(self) -> Taken:
        """What is within the cluster, so that it takes a right to name it as a destination: also what administrators
        have added.
        """
        added = find_added_networks(given=self.settings.given, config_maps=self.config_maps, infos=self.infos)
        return self._collect(*added)

    def subnet_ends(self) -> SubnetEnds:
        """Network and broadcast addresses of the networks that nodes are in."""
        return collect_subnet_ends(self.nodes, self.tunnels)

    def _collect(self, *others: OwnedNetwork) -> Taken:
        foreign = find_foreign_networks(
            calico_pools=self.calico_pools,
            cilium_nodes=self.cilium_nodes,
            cilium=self.cilium,
            kubeadm=self.kubeadm,
            kube_proxy=self.kube_proxy,
        )
        return collect_taken(
            nodes=self.nodes,
            pools=self.pools,
            service_cidrs=self.service_cidrs,
            services=self.services,
            tunnels=self.settings.tunnels,
            others=(*foreign, *others),
        )
