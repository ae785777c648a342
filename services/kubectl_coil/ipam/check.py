"""Looks for findings, and at what it has found again, until only what stays is left.

    check_addresses ─► Reader, NodeReader ─► Evidence ─► compare ─┐
          ▲                                                           │
          └──────── after a pause, the nodes of what was found ◄──────┘

A pod that starts, ends or is deleted looks wrong for some seconds. What is reported was seen in each look for as
long as `settle` says. Only the nodes that it concerns are asked again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import NODES, PODS
from coil.page.node_document import NodeDocument
from coil.page.node_dump import Part
from kubectl_coil.cluster import CALLS, Reader
from kubectl_coil.ipam.addresses import has_own_network
from kubectl_coil.ipam.document import CheckDocument, FindingDocument
from kubectl_coil.ipam.finding import REMEDIES, Evidence, NodeEvidence, compare
from kubectl_coil.node_reader import NodeReader, NodeUnreadableError, ledger_of

PAUSE: Final = 3.0
"""Seconds between two looks."""
_PARTS: Final = (Part.INSPECTION, Part.NODE)


@dataclass(frozen=True, slots=True)
class _Look:
    evidence: Evidence
    troubles: tuple[str, ...]


async def check_addresses(
    cluster: Reader,
    nodes: NodeReader,
    *,
    settle: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> CheckDocument:
    """What was wrong for `settle` seconds, on all nodes that have blocks. Raises ApiError.

    Takes as long as the nodes take, and up to `settle` and one more look if something was found.
    """
    first = await _look(cluster, nodes)
    findings = compare(first.evidence)
    troubles = dict.fromkeys(first.troubles)
    looks, begun = 1, clock()
    while findings and clock() - begun < settle:
        await sleep(min(PAUSE, settle))
        again = await _look(cluster, nodes, only={node for finding in findings for node in finding.nodes})
        seen = set(compare(again.evidence))
        unread = {node for finding in findings for node in finding.nodes} - again.evidence.ledgers.keys()
        # A node that does not answer this time has not shown that all is well.
        findings = [finding for finding in findings if finding in seen or finding.nodes & unread]
        troubles |= dict.fromkeys(again.troubles)
        looks += 1
    return CheckDocument(
        at=cluster.now(),
        nodes=len(first.evidence.ledgers),
        looks=looks,
        findings=tuple(
            FindingDocument(kind=each.kind, subject=each.subject, message=each.message, remedy=REMEDIES[each.kind])
            for each in findings
        ),
        troubles=tuple(troubles),
    )


async def _look(cluster: Reader, nodes: NodeReader, *, only: set[str] | None = None) -> _Look:
    """The objects first, as they change more slowly than nodes. `only`: of which nodes, None for all with blocks."""
    pools, blocks = await cluster.list(ADDRESS_POOLS), await cluster.list(ADDRESS_BLOCKS)
    known = {node.metadata.name for node in await cluster.list(NODES)}
    pods = [pod for pod in await cluster.list(PODS) if has_own_network(pod)]
    owners = {str(block.node) for block in blocks if block.node} & known
    ledgers, troubles = await _read_nodes(nodes, sorted(owners if only is None else only))
    evidence = Evidence(pools=pools, blocks=blocks, nodes=known, pods=pods, ledgers=ledgers)
    return _Look(evidence, troubles)


async def _read_nodes(nodes: NodeReader, names: Iterable[str]) -> tuple[dict[str, NodeEvidence], tuple[str, ...]]:
    found: dict[str, NodeEvidence] = {}
    troubles: list[str] = []
    free = asyncio.Semaphore(CALLS)

    async def read(name: str) -> None:
        async with free:
            try:
                dump = await nodes.read(name, _PARTS)
                ledger = ledger_of(dump, name)
            except NodeUnreadableError as error:
                troubles.append(str(error))
                return
        if not isinstance(ledger, NodeDocument):
            return  # its addresses are of a VPC, and coil-ipam-controller compares them with EC2
        gaps = [*dump.truncated, *dump.troubles]
        if ledger.tables is None:
            gaps.append("its coild is older, and does not tell which are its own")
        if gaps:
            troubles.append(f"the routes of {name} are not judged: {'; '.join(gaps)}")
        found[name] = NodeEvidence(ledger, None if gaps else dump.node)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(read(name))
    return found, tuple(sorted(troubles))
