"""Writes the status of each EgressGatewayPolicy: its gateway, address and node, or why it is not served.

Agents read nothing of it but the address of a policy that no node carries, so it is written after the gateway's status,
never before, and by a few workers: a thousand policies that move hold up nothing. The keys are those of policies.

A status is guarded by the version that it was planned from. The previous conditions are read from the policy itself, so
a new leader does not report again what the last one has reported.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from coil.crd.egress_gateway_policy import (
    EGRESS_GATEWAY_POLICIES,
    EgressGatewayPolicy,
    EgressGatewayPolicyStatus,
)
from coil.crd.meta import Condition
from coil.crd.resource import object_key
from coil.eip.claim import Placed, Refusal
from coil.eip.gateway_choice import NoGateway
from coil.eip.gateway_status import NO_NODE, plan_policy_status
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError
from coil.manager.term import Channel, Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil.reconcile.own_write import OwnWrites
from coil_egress_controller.eip.gateway_index import ChoiceIndex
from coil_egress_controller.eip.gateway_reconciler import GatewayDecision

WORKERS: Final = 4
_BATCH_WINDOW: Final = 0.2
"""After a policy's change: its namespace or its gateway may be about to be created."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    gateway: str
    outcome: Placed | Refusal
    generation: int
    """Of the policy's spec that it was made by."""


class PolicyStatusReconciler:
    """Of one term. `written` follows the cache of policies."""

    def __init__(
        self,
        *,
        client: ApiClient,
        policies: Cache[EgressGatewayPolicy],
        choices: ChoiceIndex,
        written: OwnWrites[EgressGatewayPolicy],
        recorder: Recorder,
        now: Callable[[], datetime],
        others: Callable[[EgressGatewayPolicy], Iterable[Condition]],
    ) -> None:
        """`others` gives the conditions of a policy that do not follow from what was decided about its gateway."""
        self._client = client
        self._policies = policies
        self._choices = choices
        self._written = written
        self._recorder = recorder
        self._now = now
        self._others = others
        self._verdicts: dict[str, _Verdict] = {}

    def setup(
        self,
        term: Term,
        *,
        decided: Channel[GatewayDecision],
        unassigned: Channel[str],
        others: Channel[str],
        resync: float,
    ) -> None:
        """`unassigned` are the keys of policies that have lost their gateway, `others` of those whose other conditions
        have changed.
        """
        controller = term.controller("egressgatewaypolicy", self.reconcile, workers=WORKERS)
        controller.watch(self._policies, self._changed_policies, batch_window=_BATCH_WINDOW)
        controller.watch_channel(decided, self._decided_policies)
        controller.watch_channel(unassigned, lambda policy: [policy], batch_window=_BATCH_WINDOW)
        controller.watch_channel(others, lambda policy: [policy])
        controller.resync(lambda: [object_key(policy.metadata) for policy in self._policies.items()], every=resync)

    def _decided_policies(self, decision: GatewayDecision) -> Iterable[str]:
        for ref, outcome in decision.outcomes:
            key = f"{ref.namespace}/{ref.name}"
            verdict = _Verdict(decision.gateway, outcome, decision.generations[ref])
            if self._verdicts.get(key) != verdict:
                self._verdicts[key] = verdict
                yield key

    def _changed_policies(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> Iterable[str]:
        """A policy that was created, changed or deleted, or in whose status somebody else has written."""
        present = new or old
        if present is None:
            return
        key = object_key(present.metadata)
        if new is None:
            self._verdicts.pop(key, None)
        elif old is None or old.status != new.status or old.metadata.generation != new.metadata.generation:
            ours = self._written.latest(key, None)
            if ours is None or ours.metadata.resource_version != new.metadata.resource_version:
                yield key

    async def reconcile(self, key: str) -> Result:
        """Bring the status of the policy of that key up to date, if anything is known of it."""
        policy = self._written.latest(key, self._policies.get(key))
        choice = self._choices.choice(key)
        if policy is None or choice is None:
            return DONE
        outcome: Placed | Refusal | NoGateway
        if isinstance(choice, NoGateway):
            gateway, outcome, generation = "", choice, policy.metadata.generation
        else:
            verdict = self._verdicts.get(key)
            if verdict is None or verdict.gateway != choice:
                return DONE  # a decision about the gateway is to come
            gateway, outcome, generation = verdict.gateway, verdict.outcome, verdict.generation
        status = plan_policy_status(
            policy, gateway, outcome, generation=generation, others=self._others(policy), now=self._now()
        )
        if status == policy.status:
            return DONE
        name, namespace = policy.metadata.name, policy.metadata.namespace
        body = msgspec.structs.replace(policy, status=status)
        try:
            stored = await self._client.replace(
                EGRESS_GATEWAY_POLICIES, body, name=name, namespace=namespace, subresource="status"
            )
        except ApiError as error:
            self._written.forget(key)
            if isinstance(error, NotFoundError):
                return DONE
            raise
        self._written.note(policy, stored, cached=self._policies.get(key))
        self._report(policy, status)
        return DONE

    def _report(self, policy: EgressGatewayPolicy, status: EgressGatewayPolicyStatus) -> None:
        """As Events: what is wrong with the policy, where its status did not give that reason before. That no node
        carries it for the moment is no Event.
        """
        before: dict[str, Condition] = {condition.type: condition for condition in policy.status.conditions}
        for condition in status.conditions:
            known = before.get(condition.type)
            is_wrong = condition.status == "False" and condition.reason != NO_NODE
            if is_wrong and (known is None or known.reason != condition.reason):
                subject = EventSubject.of(EGRESS_GATEWAY_POLICIES, policy.metadata)
                self._recorder.warn(subject, reason=condition.reason, message=condition.message)
