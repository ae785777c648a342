"""Decides for each EgressGateway which policy leaves through which address on which node, and writes it as its status.

In the flow: policies, nodes, tunnels and leases → `coil.eip.placement` → `coil.eip.gateway_status` → one write, on
which agents act → `policy_status_reconciler`, which informs the policies' owners. The keys are gateway names; a gateway
is decided on as a whole. A move of an address is that one write, and follows a revoked lease at once, while other
changes are gathered for a moment.

The status is guarded by the resource version that it was planned from, and the plan knows the decisions of an earlier
leader only from the status: after a conflict it is planned again. What has not changed is not written.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Namespace, Node
from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway, EgressGatewayStatus, PolicyRef
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.meta import Condition
from coil.crd.validation import render_names
from coil.eip.address_range import RangeError
from coil.eip.claim import Claim, Placed, Refusal, parse_claim, policy_ref
from coil.eip.gateway_status import as_listed, former_of, plan_status
from coil.eip.placement import Placement, parse_rules, place
from coil.kernel.family import IPAddress
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError
from coil.kube.lease_lock import Lease
from coil.manager.term import Channel, Term
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil.reconcile.own_write import OwnWrites
from coil_egress_controller.eip.gateway_index import ChoiceIndex, NodeAddressIndex, SelectionIndex
from coil_egress_controller.eip.lease_monitor import LeaseMonitor
from coil_egress_controller.eip.node_fact import NodeFactSource

WORKERS: Final = 4
BACKOFF: Final = Backoff(base=0.02, cap=5.0)
"""Addresses wait for it; and a gateway is one document, so there are never many to retry."""
_BATCH_WINDOW: Final = 0.05


@dataclass(frozen=True, slots=True)
class GatewayDecision:
    """What the status of a gateway, which is written, means for its policies.

    `generations` are those of the policies' specs that it was made by.
    """

    gateway: str
    outcomes: Sequence[tuple[PolicyRef, Placed | Refusal]]
    generations: Mapping[PolicyRef, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReconciler:
    """Of one term. `written` and `policies_written` follow the caches of gateways and policies. `limit` is how many
    policies a gateway serves. `delay` gives the seconds for which a gateway is not decided on yet; None: until
    something changes. `cluster_policy_of` gives the EgressClusterPolicy that a policy stands for; "" for none.
    """

    client: ApiClient
    choices: ChoiceIndex
    selections: SelectionIndex
    node_addresses: NodeAddressIndex
    facts: NodeFactSource
    leases: LeaseMonitor
    gateways: Cache[EgressGateway]
    policies: Cache[EgressGatewayPolicy]
    written: OwnWrites[EgressGateway]
    policies_written: OwnWrites[EgressGatewayPolicy]
    decided: Channel[GatewayDecision]
    recorder: Recorder
    limit: int
    delay: Callable[[EgressGateway], Awaitable[float | None]]
    cluster_policy_of: Callable[[EgressGatewayPolicy], str]
    now: Callable[[], datetime]
    random: Callable[[], float]
    log: FilteringBoundLogger

    def setup(
        self,
        term: Term,
        nodes: Cache[Node],
        namespaces: Cache[Namespace],
        tunnels: Cache[EgressTunnel],
        leases: Cache[Lease],
        *,
        resync: float,
    ) -> None:
        """Watches keep the indexes up to date, and these say which gateways are affected."""
        controller = term.controller("egressgateway", self.reconcile, workers=WORKERS, backoff=BACKOFF)
        selections, choices = self.selections, self.choices
        controller.watch(self.gateways, selections.change_gateway, batch_window=_BATCH_WINDOW)
        controller.watch(nodes, selections.change_node, batch_window=_BATCH_WINDOW)
        controller.watch(nodes, self.node_addresses.change_node, batch_window=_BATCH_WINDOW)
        controller.watch(self.policies, choices.change_policy, batch_window=_BATCH_WINDOW)
        controller.watch(self.gateways, choices.change_gateway, batch_window=_BATCH_WINDOW)
        controller.watch(namespaces, choices.change_namespace, batch_window=_BATCH_WINDOW)
        controller.watch(tunnels, self._gateways_of_tunnel, batch_window=_BATCH_WINDOW)
        # At once: nothing is worth waiting for while a node's addresses are nowhere.
        controller.watch_channel(self.leases.changes, selections.gateways)
        controller.needs(leases)
        controller.resync(lambda: [gateway.metadata.name for gateway in self.gateways.items()], every=resync)

    async def reconcile(self, name: str) -> Result:
        """Bring the status of the gateway of that name up to date. Raises ConflictError when a cache lagged behind."""
        gateway = self.written.latest(name, self.gateways.get(name))
        if gateway is None or (delay := await self.delay(gateway)) is None:
            return DONE
        if delay > 0:
            return RequeueAfter(delay)
        policies = self._policies(name)
        try:
            status, outcomes = self._decide(gateway, policies)
        except RangeError as error:
            # It was stored past admission, and stays as it was last decided on.
            subject = EventSubject.of(EGRESS_GATEWAYS, gateway.metadata)
            self.recorder.warn(subject, reason="GatewayInvalid", message=str(error))
            self.log.warning("invalid gateway", gateway=name, error=str(error))
            return DONE
        if status != gateway.status and not await self._write(gateway, status):
            return DONE
        generations = {policy_ref(policy): policy.metadata.generation for policy in policies}
        self.decided.send(GatewayDecision(name, outcomes, generations))
        return DONE

    def _policies(self, name: str) -> list[EgressGatewayPolicy]:
        keys = self.choices.policies(name)
        found = (self.policies_written.latest(key, self.policies.get(key)) for key in keys)
        return [policy for policy in found if policy is not None]

    def _decide(
        self, gateway: EgressGateway, policies: Sequence[EgressGatewayPolicy]
    ) -> tuple[EgressGatewayStatus, list[tuple[PolicyRef, Placed | Refusal]]]:
        """Raises RangeError."""
        rules = parse_rules(gateway.spec)
        claims = {
            policy_ref(policy): parse_claim(policy, rules.default_eip, cluster_policy=self.cluster_policy_of(policy))
            for policy in policies
        }
        facts = self.facts.read(gateway, self.selections.nodes(gateway.metadata.name))
        for node, term in facts.missing.items():
            self.leases.miss(node, term)
        reserved = self.node_addresses.within(rules)
        placement = place(
            rules,
            candidates=facts.candidates,
            claims=[claim for claim in claims.values() if isinstance(claim, Claim)],
            former=former_of(gateway, policies),
            reserved=reserved,
            limit=self.limit,
            random=self.random,
        )
        self._report_reserved(gateway, placement, reserved)
        refused = {ref: claim for ref, claim in claims.items() if isinstance(claim, Refusal)}
        placement = replace(placement, refused={**placement.refused, **refused})
        status = plan_status(gateway, placement, facts.nodes, limit=self.limit, now=self.now())
        outcomes: list[tuple[PolicyRef, Placed | Refusal]] = [
            (placed.policy, placed) for placed in as_listed(status, placement)
        ]
        outcomes += placement.refused.items()
        return status, outcomes

    async def _write(self, gateway: EgressGateway, status: EgressGatewayStatus) -> bool:
        """False: the gateway is gone."""
        name = gateway.metadata.name
        body = msgspec.structs.replace(gateway, status=status)
        try:
            stored = await self.client.replace(EGRESS_GATEWAYS, body, name=name, subresource="status")
        except ApiError as error:
            self.written.forget(name)
            if isinstance(error, NotFoundError):
                return False
            raise
        self.written.note(gateway, stored, cached=self.gateways.get(name))
        self.log.info(
            "gateway decided", gateway=name, revision=status.revision, nodes=sum(bool(n.eips) for n in status.node_list)
        )
        self._report(gateway, status)
        return True

    def _report(self, gateway: EgressGateway, status: EgressGatewayStatus) -> None:
        """As Events: the conditions of `status` that are not those of the gateway's status before."""
        subject = EventSubject.of(EGRESS_GATEWAYS, gateway.metadata)
        before: dict[str, Condition] = {condition.type: condition for condition in gateway.status.conditions}
        for condition in status.conditions:
            known = before.get(condition.type)
            if known is not None and (known.status, known.reason) == (condition.status, condition.reason):
                continue
            bad = condition.status == ("False" if condition.type == "Ready" else "True")
            if bad:
                self.recorder.warn(subject, reason=condition.reason, message=condition.message)
            elif known is not None:
                self.recorder.note(subject, reason=condition.reason, message=condition.message)

    def _report_reserved(self, gateway: EgressGateway, placement: Placement, reserved: Collection[IPAddress]) -> None:
        """As an Event: EIPs that policies have and that are a Node's as well."""
        used = {part for placed in placement.placed if placed.eip for part in (placed.eip.ipv4, placed.eip.ipv6)}
        if both := sorted(str(address) for address in used.intersection(reserved)):
            message = f"policies have {render_names(both)}, which Nodes have as well: take them out of the ranges"
            subject = EventSubject.of(EGRESS_GATEWAYS, gateway.metadata)
            self.recorder.warn(subject, reason="EgressIPOfNode", message=message)

    def _gateways_of_tunnel(self, old: EgressTunnel | None, new: EgressTunnel | None) -> Iterable[str]:
        """Of a tunnel whose phase has changed."""
        present = new or old
        phases = [tunnel.status.phase if tunnel is not None else None for tunnel in (old, new)]
        return [] if present is None or phases[0] == phases[1] else self.selections.gateways(present.metadata.name)
