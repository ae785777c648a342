"""`--cleanup`: a node without anything of the agent's.

The agent must not run any more. The order is that of a withdrawal: first the EIPs go, then the tunnel, then the tables.
"""

from typing import Protocol

from coil.eip.eip_table import EipTableOptions, forward_shim
from coil_egress_agent.eip.forward_shim import Run, remove_shim, run_program
from coil_egress_agent.eip.kernel import bounded


class Removable(Protocol):
    async def clean_up(self) -> object: ...


async def clean_node(
    overlay: Removable, tables: Removable, *, options: EipTableOptions, run: Run = run_program
) -> None:
    """Undo everything. Idempotent. Raises one of KERNEL_ERRORS; what was not reached then is still there."""
    await bounded(overlay.clean_up())
    await bounded(tables.clean_up())
    await remove_shim(forward_shim(options), run=run)
