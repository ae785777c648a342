"""The reconcilers of floating egress addresses in one term of leadership, which is what they remember things for."""

from dataclasses import dataclass

from coil.crd.egress_endpoint_slice import EgressEndpointSlice
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_tunnel import EgressTunnel
from coil.reconcile.queue import WorkQueue
from coil_egress_controller import policy_status_controller, tunnel_phase_controller
from coil_egress_controller.choice_book import ChoiceBook
from coil_egress_controller.cluster_view import BY_NAMESPACE
from coil_egress_controller.eip_workplace import EipWorkplace
from coil_egress_controller.endpoint_book import EndpointBook
from coil_egress_controller.gateway_controller import GatewayController
from coil_egress_controller.node_fact import NodeFactSource
from coil_egress_controller.own_write import OwnWrites
from coil_egress_controller.policy_status_controller import PolicyStatusController
from coil_egress_controller.selection_book import SelectionBook
from coil_egress_controller.slice_controller import SliceController
from coil_egress_controller.tenure_keeper import TenureKeeper
from coil_egress_controller.tunnel_controller import TunnelController
from coil_egress_controller.tunnel_phase_controller import TunnelPhaseController


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
class EipTeam:
    written: Written
    choices: ChoiceBook
    selections: SelectionBook
    endpoints: EndpointBook
    keeper: TenureKeeper
    gateways: GatewayController
    policies: PolicyStatusController
    slices: SliceController
    tunnels: TunnelController
    phases: TunnelPhaseController

    @classmethod
    def assemble(cls, place: EipWorkplace, queues: EipQueues) -> "EipTeam":
        """Nobody has been told of anything yet, nor is at work."""
        client, view, log = place.client, place.view, place.log
        written = Written(OwnWrites(), OwnWrites(), OwnWrites(), OwnWrites())
        selections = SelectionBook(view)

        def stray(policy: str) -> None:
            queues.policies.add_after(policy, policy_status_controller.SETTLE_SECONDS)

        choices = ChoiceBook(view, strayed=stray)
        keeper = TenureKeeper(
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
            queues.phases.add_after(node, tunnel_phase_controller.SETTLE_SECONDS)

        keeper.subscribe(tell)
        policies = PolicyStatusController(place, choices=choices, written=written.policies, queue=queues.policies)
        endpoints = EndpointBook(lambda namespace: view.pods.by_index(BY_NAMESPACE, namespace))
        return cls(
            written=written,
            choices=choices,
            selections=selections,
            endpoints=endpoints,
            keeper=keeper,
            gateways=GatewayController(
                place,
                choices=choices,
                selections=selections,
                facts=NodeFactSource(view, tenure=keeper.tenure, miss=keeper.miss),
                written=written.gateways,
                policies_written=written.policies,
                announcer=policies,
            ),
            policies=policies,
            slices=SliceController(
                client=client,
                view=view,
                book=endpoints,
                written=written.slices,
                limit=place.policy.slice_endpoints,
                metrics=place.metrics,
                random=place.random,
            ),
            tunnels=TunnelController(
                client=client, view=view, nets=place.policy.tunnel_nets, written=written.tunnels, log=log
            ),
            phases=TunnelPhaseController(
                client=client,
                view=view,
                written=written.tunnels,
                tenure=keeper.tenure,
                is_gateway=selections.selects,
                log=log,
            ),
        )
