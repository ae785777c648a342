"""Tells each EgressGatewayPolicy what has become of it: its gateway, address and node, or why it is not served.

Agents take nothing from it but the address of a policy that no node carries, so it is written behind the gateway's
status, never before, by a few workers: a thousand policies that moved hold up nothing. The keys are those of policies.

A status is guarded by the version that it was planned from. The conditions before are read from the policy itself, so a
new leader does not tell again what the last one has told.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from coil.crd.egress_gateway import PolicyRef
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.resource import object_key
from coil.eip.claim import Placed, Refusal
from coil.eip.gateway_choice import NoGateway
from coil.eip.gateway_status import plan_policy_status
from coil.kube.errors import ApiError, NotFoundError
from coil.reconcile.controller import DONE, Result
from coil.reconcile.queue import WorkQueue
from coil_egress_controller.eip.choice_index import ChoiceIndex
from coil_egress_controller.eip.deps import EipDeps
from coil_egress_controller.eip.event import tell_refused_policy
from coil_egress_controller.eip.own_write import OwnWrites

SETTLE_SECONDS: Final = 0.2
"""After a policy's change: its namespace or its gateway may be about to appear."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    gateway: str
    outcome: Placed | Refusal


class PolicyStatusReconciler:
    """Of one term. `queue` is the one that `reconcile` gets its keys from; `written` follows the source of policies."""

    def __init__(
        self,
        place: EipDeps,
        *,
        choices: ChoiceIndex,
        written: OwnWrites[EgressGatewayPolicy],
        queue: WorkQueue,
    ) -> None:
        self._place = place
        self._view = place.view
        self._choices = choices
        self._written = written
        self._queue = queue
        self._verdicts: dict[str, _Verdict] = {}

    def announce(self, gateway: str, outcomes: Sequence[tuple[PolicyRef, Placed | Refusal]]) -> None:
        """What the status of `gateway`, which is written, means for its policies."""
        for ref, outcome in outcomes:
            key, verdict = f"{ref.namespace}/{ref.name}", _Verdict(gateway, outcome)
            if self._verdicts.get(key) != verdict:
                self._verdicts[key] = verdict
                self._queue.add(key)

    def changed_policies(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> Iterable[str]:
        """A policy that has come or gone, or in whose status somebody else has written."""
        present = new or old
        if present is None:
            return
        key = object_key(present.metadata)
        if new is None:
            self._verdicts.pop(key, None)
        elif old is None or old.status != new.status or old.spec != new.spec:
            ours = self._written.latest(key, None)
            if ours is None or ours.metadata.resource_version != new.metadata.resource_version:
                yield key

    async def reconcile(self, key: str) -> Result:
        """Bring the status of the policy of that key up to date, if anything is known of it."""
        policy = self._written.latest(key, self._view.policies.get(key))
        choice = self._choices.choice(key)
        if policy is None or choice is None:
            return DONE
        outcome: Placed | Refusal | NoGateway
        if isinstance(choice, NoGateway):
            gateway, outcome = "", choice
        else:
            verdict = self._verdicts.get(key)
            if verdict is None or verdict.gateway != choice:
                return DONE  # the gateway is going to say
            gateway, outcome = verdict.gateway, verdict.outcome
        status = plan_policy_status(policy, gateway, outcome, now=self._place.now())
        if status == policy.status:
            return DONE
        name, namespace = policy.metadata.name, policy.metadata.namespace
        body = msgspec.structs.replace(policy, status=status)
        try:
            stored = await self._place.client.replace(
                EGRESS_GATEWAY_POLICIES, body, name=name, namespace=namespace, subresource="status"
            )
        except ApiError as error:
            self._written.forget(key)
            if isinstance(error, NotFoundError):
                return DONE
            raise
        self._written.note(policy, stored, cached=self._view.policies.get(key))
        if not isinstance(outcome, Placed):
            tell_refused_policy(self._place.recorder, policy, status)
        return DONE
