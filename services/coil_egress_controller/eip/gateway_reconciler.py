"""Decides for each EgressGateway which policy leaves through which address on which node, and writes it as its status.

In the flow: policies, nodes, tunnels and leases → `coil.eip.placement` → `coil.eip.gateway_status` → one write, on
which agents act → `policy_status_controller`, which tells people. The keys are gateway names; a gateway is decided on
as a whole. A move of an address is that one write, and follows a revoked lease without any pause, while other changes
are gathered for a moment (see `eip_leadership`).

The status is guarded by the resource version that it was planned from, and that plan knows what an earlier leader has
decided only from the status: a conflict means to plan anew. What has not changed is not written.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway, EgressGatewayStatus, PolicyRef
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.eip.address_range import RangeError
from coil.eip.claim import Claim, Placed, Refusal, parse_claim, policy_ref
from coil.eip.gateway_status import as_listed, former_of, plan_status
from coil.eip.placement import parse_rules, place
from coil.kube.errors import ApiError, NotFoundError
from coil.reconcile.controller import DONE, Result
from coil_egress_controller.eip.choice_index import ChoiceIndex
from coil_egress_controller.eip.deps import EipDeps
from coil_egress_controller.eip.event import tell_gateway, tell_invalid_gateway
from coil_egress_controller.eip.node_fact import NodeFactSource
from coil_egress_controller.eip.own_write import OwnWrites
from coil_egress_controller.eip.selection_index import SelectionIndex

SETTLE_SECONDS = 0.05


class Announcer(Protocol):
    """Who tells policies what has become of them."""

    def announce(self, gateway: str, outcomes: Sequence[tuple[PolicyRef, Placed | Refusal]]) -> None: ...


class GatewayReconciler:
    """Of one term. `written` and `policies_written` follow the sources of gateways and policies."""

    def __init__(
        self,
        place: EipDeps,
        *,
        choices: ChoiceIndex,
        selections: SelectionIndex,
        facts: NodeFactSource,
        written: OwnWrites[EgressGateway],
        policies_written: OwnWrites[EgressGatewayPolicy],
        announcer: Announcer,
    ) -> None:
        self._place = place
        self._view = place.view
        self._recorder = place.recorder
        self._log = place.log
        self._choices = choices
        self._selections = selections
        self._facts = facts
        self._written = written
        self._policies_written = policies_written
        self._announcer = announcer

    async def reconcile(self, name: str) -> Result:
        """Bring the status of the gateway of that name up to date. Raises ConflictError when a picture was late."""
        gateway = self._written.latest(name, self._view.gateways.get(name))
        if gateway is None:
            return DONE
        policies = self._policies(name)
        try:
            status, outcomes = self._decide(gateway, policies)
        except RangeError as error:
            tell_invalid_gateway(self._recorder, gateway, str(error))
            self._log.warning("gateway cannot be carried out", gateway=name, why=str(error))
            return DONE
        if status != gateway.status and not await self._write(gateway, status):
            return DONE
        self._announcer.announce(name, outcomes)
        return DONE

    def _policies(self, name: str) -> list[EgressGatewayPolicy]:
        keys = self._choices.policies(name)
        found = (self._policies_written.latest(key, self._view.policies.get(key)) for key in keys)
        return [policy for policy in found if policy is not None]

    def _decide(
        self, gateway: EgressGateway, policies: Sequence[EgressGatewayPolicy]
    ) -> tuple[EgressGatewayStatus, list[tuple[PolicyRef, Placed | Refusal]]]:
        """Raises RangeError."""
        rules = parse_rules(gateway.spec)
        wishes = {policy_ref(policy): parse_claim(policy) for policy in policies}
        facts, candidates = self._facts.look(gateway, self._selections.nodes(gateway.metadata.name))
        placement = place(
            rules,
            candidates=candidates,
            claims=[wish for wish in wishes.values() if isinstance(wish, Claim)],
            former=former_of(gateway, policies),
            random=self._place.random,
        )
        refused = {ref: wish for ref, wish in wishes.items() if isinstance(wish, Refusal)}
        placement = replace(placement, refused={**placement.refused, **refused})
        status = plan_status(gateway, placement, facts, now=self._place.now())
        outcomes: list[tuple[PolicyRef, Placed | Refusal]] = [
            (placed.policy, placed) for placed in as_listed(status, placement)
        ]
        outcomes += placement.refused.items()
        return status, outcomes

    async def _write(self, gateway: EgressGateway, status: EgressGatewayStatus) -> bool:
        """False: the gateway has gone."""
        name = gateway.metadata.name
        body = msgspec.structs.replace(gateway, status=status)
        try:
            stored = await self._place.client.replace(EGRESS_GATEWAYS, body, name=name, subresource="status")
        except ApiError as error:
            self._written.forget(name)
            if isinstance(error, NotFoundError):
                return False
            raise
        self._written.note(gateway, stored, cached=self._view.gateways.get(name))
        self._log.info(
            "gateway decided", gateway=name, revision=status.revision, nodes=sum(bool(n.eips) for n in status.node_list)
        )
        tell_gateway(self._recorder, gateway, status)
        return True
