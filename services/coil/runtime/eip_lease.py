"""Where the Leases of gateway nodes are kept: one flag of the programs that meet there, the controller and the agents.

It is a namespace of their own. The Leases have the nodes' names, so no role can name them, and whoever may renew one
may write to every Lease of its namespace: in the system's those are the scheduler's and the controllers'.
"""

from dataclasses import dataclass
from typing import Final

from coil.crd.names import is_namespace_name
from coil.runtime.flag import Group, flag, kind

EIP_LEASE_NAMESPACE: Final = "coil-eip-leases"
"""What the chart makes, with the roles."""


@kind("NAMESPACE")
def parse_namespace(text: str) -> str:
    """The name of a namespace."""
    if not is_namespace_name(text):
        raise ValueError("the name of a namespace")
    return text


@dataclass(frozen=True, kw_only=True)
class EipLeaseSettings:
    """The settings of a process that reads or writes these Leases; its own settings extend them."""

    eip_lease_namespace: str = flag(
        EIP_LEASE_NAMESPACE,
        parse=parse_namespace,
        group=Group.EIP,
        help="the namespace of the gateway nodes' Leases; coil-egress-controller and the agents must be told the same",
    )
