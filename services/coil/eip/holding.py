"""Which floating addresses a node may hold by a gateway's status: the agent's side of the fence
(`coil.eip.gateway_lease`).

The answer is good while the agent's last acknowledged renewal is, and for that renewal's term only.
"""

from collections.abc import Iterable, Mapping

from coil.crd.egress_gateway import EgressGateway, EipEntry
from coil.crd.names import NodeName


def holding(gateway: EgressGateway, node: NodeName, *, term: int, applied: Mapping[str, int]) -> tuple[EipEntry, ...]:
    """The entries with addresses that `node` is to have on its device.

    None of another term, none that leave, and none at all by a status that is older than one which was applied
    already (a cache may lag behind what an earlier process of the agent has seen). `applied` is by UID.
    """
    if gateway.status.revision < applied.get(gateway.metadata.uid, 0):
        return ()
    return tuple(
        entry
        for listed in gateway.status.node_list
        if listed.name == node and listed.term == term
        for entry in listed.eips
        if not entry.leaving and (entry.ipv4 or entry.ipv6)
    )


def known_term(gateways: Iterable[EgressGateway], node: NodeName) -> int:
    """The highest term that a status names for `node`, see `claim_term`."""
    return max(
        (listed.term for gateway in gateways for listed in gateway.status.node_list if listed.name == node), default=0
    )
