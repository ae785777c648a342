"""The conditions of gateways and policies: what their status says to people."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from coil.crd.egress_gateway import AddressUsage
from coil.crd.meta import Condition
from coil.eip.claim import Placed, Refusal
from coil.eip.gateway_choice import NoGateway

READY: Final = "Ready"
EXHAUSTED: Final = "Exhausted"


def gateway_conditions(ready_nodes: int, usage: AddressUsage) -> tuple[Condition, ...]:
    """Ready: a node can carry addresses. Exhausted: no address is free, so that policies share them."""
    if ready_nodes:
        ready = Condition(type=READY, status="True", reason="NodeReady", message="a node can carry its addresses")
    else:
        text = "no node that it selects can carry its addresses now"
        ready = Condition(type=READY, status="False", reason="NoNode", message=text)
    full4 = usage.ipv4_total > 0 and not usage.ipv4_free
    full6 = usage.ipv6_total > 0 and not usage.ipv6_free
    if full4 or full6:
        text = "every address is in use: further policies share one"
        return ready, Condition(type=EXHAUSTED, status="True", reason="NoFreeAddress", message=text)
    return ready, Condition(type=EXHAUSTED, status="False", reason="AddressesFree")


def policy_condition(outcome: Placed | Refusal | NoGateway) -> Condition:
    """Ready: a node carries the policy's traffic."""
    if not isinstance(outcome, Placed):
        return Condition(type=READY, status="False", reason=outcome.reason, message=outcome.message)
    if outcome.node is None:
        text = "no node carries it now: none is ready, or its address has not yet left another"
        return Condition(type=READY, status="False", reason="NoNode", message=text)
    return Condition(type=READY, status="True", reason="Placed", message=f"leaves by {outcome.node}")


def keep_times(conditions: Iterable[Condition], before: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
    """`conditions` with the time of their last change of status, by what they were before."""
    old = {condition.type: condition for condition in before}
    return tuple(msgspec.structs.replace(one, last_transition_time=_since(one, old, now)) for one in conditions)


def _since(condition: Condition, old: dict[str, Condition], now: datetime) -> datetime:
    before = old.get(condition.type)
    if before is None or before.status != condition.status or before.last_transition_time is None:
        # The API server keeps whole seconds.
        return now.replace(microsecond=0)
    return before.last_transition_time
