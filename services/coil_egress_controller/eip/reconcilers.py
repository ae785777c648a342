"""The reconcilers of floating egress addresses in one term of leadership, which is what they remember things for."""

from dataclasses import dataclass

from coil.crd.egress_endpoint_slice import EgressEndpointSlice
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_tunnel import EgressTunnel
from coil.reconcile.queue import WorkQueue
from coil_egress_controller.cluster_view import BY_NAMESPACE
from coil_egress_controller.eip import policy_status_reconciler, tunnel_phase_reconciler
from coil_egress_controller.eip.choice_index import ChoiceIndex
from coil_egress_controller.eip.deps import EipDeps
from coil_egress_controller.eip.endpoint_index import EndpointIndex
from coil_egress_controller.eip.gateway_reconciler import GatewayReconciler
from coil_egress_controller.eip.lease_monitor import LeaseMonitor
from coil_egress_controller.eip.node_fact import NodeFactSource
from coil_egress_controller.eip.own_write import OwnWrites
from coil_egress_controller.eip.policy_status_reconciler import PolicyStatusReconciler
from coil_egress_controller.eip.selection_index import SelectionIndex
from coil_egress_controller.eip.slice_reconciler import SliceReconciler
from coil_egress_controller.eip.tunnel_phase_reconciler import TunnelPhaseReconciler
from coil_egress_controller.eip.tunnel_reconciler import TunnelReconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class EipQueues:
    """What waits to be done, by whom of the team."""

    gateways: WorkQueue
    tenures: WorkQueue
    policies: WorkQueue
    slices: WorkQueue
    mesh: WorkQueue
    phases: WorkQueue


@dataclass(frozen=True, slots=True)
class Written:
    """What the team has written, by kind."""

    gateways: OwnWrites[EgressGateway]
    policies: OwnWrites[EgressGatewayPolicy]
    slices: OwnWrites[EgressEndpointSlice]
    tunnels: OwnWrites[EgressTunnel]


@dataclass(frozen=True, slots=True, kw_only=True)
class EipReconcilers:
    written: Written
    choices: ChoiceIndex
    selections: SelectionIndex
    endpoints: EndpointIndex
    keeper: LeaseMonitor
    gateways: GatewayReconciler
    policies: PolicyStatusReconciler
    slices: SliceReconciler
    tunnels: TunnelReconciler
    phases: TunnelPhaseReconciler

    @classmethod
    def assemble(cls, place: EipDeps, queues: EipQueues) -> "EipReconcilers":
        """Nobody has been told of anything yet, nor is at work."""
        client, view, log = place.client, place.view, place.log
        written = Written(OwnWrites(), OwnWrites(), OwnWrites(), OwnWrites())
        selections = SelectionIndex(view)

        def stray(policy: str) -> None:
            queues.policies.add_after(policy, policy_status_reconciler.SETTLE_SECONDS)

        choices = ChoiceIndex(view, strayed=stray)
        keeper = LeaseMonitor(
            client=client,
            namespace=place.policy.lease_namespace,
            queue=queues.tenures,
            listed_term=selections.listed_term,
            metrics=place.metrics,
            clock=place.clock,
            log=log,
        )

        def tell(node: str) -> None:
            # At once: for these nodes' addresses, nothing is worth waiting for.
            for gateway in selections.gateways(node):
                queues.gateways.add(gateway)
            queues.phases.add_after(node, tunnel_phase_reconciler.SETTLE_SECONDS)

        keeper.subscribe(tell)
        policies = PolicyStatusReconciler(place, choices=choices, written=written.policies, queue=queues.policies)
        endpoints = EndpointIndex(lambda namespace: view.pods.by_index(BY_NAMESPACE, namespace))
        return cls(
            written=written,
            choices=choices,
            selections=selections,
            endpoints=endpoints,
            keeper=keeper,
            gateways=GatewayReconciler(
                place,
                choices=choices,
                selections=selections,
                facts=NodeFactSource(view, tenure=keeper.tenure, miss=keeper.miss),
                written=written.gateways,
                policies_written=written.policies,
                announcer=policies,
            ),
            policies=policies,
            slices=SliceReconciler(
                client=client,
                view=view,
                book=endpoints,
                written=written.slices,
                limit=place.policy.slice_endpoints,
                metrics=place.metrics,
                random=place.random,
            ),
            tunnels=TunnelReconciler(
                client=client, view=view, nets=place.policy.tunnel_nets, written=written.tunnels, log=log
            ),
            phases=TunnelPhaseReconciler(
                client=client,
                view=view,
                written=written.tunnels,
                tenure=keeper.tenure,
                is_gateway=selections.selects,
                log=log,
            ),
        )
