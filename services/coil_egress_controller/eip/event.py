"""What people are told by Events of floating egress addresses. Equal occurrences become one with a growing count."""

from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway, EgressGatewayStatus
from coil.crd.egress_gateway_policy import (
    EGRESS_GATEWAY_POLICIES,
    EgressGatewayPolicy,
    EgressGatewayPolicyStatus,
)
from coil.crd.meta import Condition
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject


def tell_invalid_gateway(recorder: Recorder, gateway: EgressGateway, why: str) -> None:
    """It breaks rules, and was stored past admission: it stays as it was last carried out."""
    recorder.warn(EventSubject.of(EGRESS_GATEWAYS, gateway.metadata), reason="GatewayInvalid", message=why)


def tell_gateway(recorder: Recorder, gateway: EgressGateway, status: EgressGatewayStatus) -> None:
    """What `status` says and the gateway's own, the one before, does not."""
    subject = EventSubject.of(EGRESS_GATEWAYS, gateway.metadata)
    before = _by_type(gateway.status.conditions)
    for condition in status.conditions:
        known = before.get(condition.type)
        if known is not None and (known.status, known.reason) == (condition.status, condition.reason):
            continue
        bad = condition.status == ("False" if condition.type == "Ready" else "True")
        if bad:
            recorder.warn(subject, reason=condition.reason, message=condition.message)
        elif known is not None:
            recorder.note(subject, reason=condition.reason, message=condition.message)


def tell_refused_policy(recorder: Recorder, policy: EgressGatewayPolicy, status: EgressGatewayPolicyStatus) -> None:
    """Why it is not served, where `status` says so and the policy's own, the one before, does not."""
    before = _by_type(policy.status.conditions)
    for condition in status.conditions:
        known = before.get(condition.type)
        if condition.status == "False" and (known is None or known.reason != condition.reason):
            subject = EventSubject.of(EGRESS_GATEWAY_POLICIES, policy.metadata)
            recorder.warn(subject, reason=condition.reason, message=condition.message)


def _by_type(conditions: tuple[Condition, ...]) -> dict[str, Condition]:
    return {condition.type: condition for condition in conditions}
