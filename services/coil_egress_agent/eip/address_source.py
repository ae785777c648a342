"""Keeps the agent off a node whose pods have addresses of network interfaces (`coild --address-source=aws-eni`).

There, what a pod sends leaves by the table of the interface that has its address, by rules from 1024 to 1536. The marks
of policies are looked up behind them: packets that a policy sends to a gateway would leave with the pod's or the node's
address, past the policy. And a VPC drops packets with a floating address, which EC2 has not assigned to anybody. So the
agent does nothing on such a node, and says why.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.eni.node_plan import RULE_CLAIM
from coil.kernel.rule import Rule
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, bounded, sentence

LOOK_SECONDS: Final = 10.0
REFUSAL: Final = (
    "coild gives this node's pods addresses of AWS network interfaces (rules of protocol 30 at 1024 and 1536), beside "
    "which floating egress addresses do not work: a pod's packets leave by its interface before they reach a gateway. "
    "Disable either"
)

ReadRules = Callable[[], Awaitable[Collection[Rule]]]


def find_refusal(rules: Collection[Rule]) -> str | None:
    """Why the agent must not work beside these rules; None if it may.

    A rule for every packet is none of them: pools have theirs wherever `coild --pod-rule-prio` says.
    """
    return REFUSAL if any(RULE_CLAIM.covers(rule) and rule.selects for rule in rules) else None


class AddressSourceGuard:
    """`read_rules` reads the node's rules, and raises one of KERNEL_ERRORS."""

    def __init__(self, read_rules: ReadRules, *, log: FilteringBoundLogger) -> None:
        self._read_rules = read_rules
        self._log = log
        self._trouble: str | None = "not looked for rules of network interfaces yet"

    def missing(self) -> str | None:
        """What readiness lacks."""
        return self._trouble

    async def wait_until_free(self) -> None:
        """Return when the agent may work. A kernel that does not answer is no permission."""
        while (trouble := await self._look()) is not None:
            if trouble != self._trouble:
                self._log.error("not working on this node", reason=trouble)
            self._trouble = trouble
            await asyncio.sleep(LOOK_SECONDS)
        self._trouble = None

    async def watch(self, stop: Callable[[str], object]) -> None:
        """Until cancelled; calls `stop` with the reason if the node's pods get such addresses after all.

        What the kernel does not tell here is no reason: the agent's other parts have the same trouble.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await self._look() == REFUSAL and self._trouble is None:
                self._trouble = REFUSAL
                self._log.error("not working on this node", reason=REFUSAL)
                stop(REFUSAL)

    async def _look(self) -> str | None:
        try:
            return find_refusal(await bounded(self._read_rules()))
        except KERNEL_ERRORS as error:
            return sentence(error)
