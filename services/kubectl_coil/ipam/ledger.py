"""The ledger of a node's coild, flat: each address that is out, or cools down, or of which it is known who had it."""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address

from coil.page.node_document import AddressDocument, BlockDocument, FormerHolderDocument, NodeDocument
from kubectl_coil.ipam.document import FormerPodDocument, LedgerEntryDocument, LedgerState
from kubectl_coil.node_reader import EniLedger


def flatten_ledger(ledger: NodeDocument | EniLedger) -> Iterator[LedgerEntryDocument]:
    """In the order of blocks, or interfaces, and addresses."""
    if isinstance(ledger, EniLedger):
        return _flatten_interfaces(ledger)
    return (entry for pool in ledger.pools for block in pool.blocks for entry in _flatten_block(block))


def _flatten_block(block: BlockDocument) -> Iterator[LedgerEntryDocument]:
    used = {each.slot: each for each in block.used}
    former = {each.slot: each for each in block.former}
    for slot in sorted(used.keys() | former.keys()):
        yield _describe(block, used.get(slot), former.get(slot))


def _describe(
    block: BlockDocument, use: AddressDocument | None, had: FormerHolderDocument | None
) -> LedgerEntryDocument:
    """One of both is given."""
    at = use or had
    before = None
    if had is not None:
        before = FormerPodDocument(pod=_pod(had.namespace, had.pod), since=had.since, until=had.until)
    return LedgerEntryDocument(
        addresses=_texts(() if at is None else (at.ipv4, at.ipv6)),
        block=block.name,
        state=LedgerState.FREE if use is None else LedgerState(use.state),
        pod=_pod(use.namespace, use.pod) if use else "",
        container=(use.container if use else None) or "",
        since=use.since if use else None,
        before=before,
    )


def _flatten_interfaces(ledger: EniLedger) -> Iterator[LedgerEntryDocument]:
    for interface in ledger.interfaces:
        for use in interface.used:
            yield LedgerEntryDocument(
                addresses=(use.address,),
                block=interface.id,
                state=LedgerState(use.state),
                pod=_pod(use.namespace, use.pod),
                container=use.container or "",
                since=use.since,
                before=None,
            )


def _texts(addresses: Iterable[IPv4Address | IPv6Address | None]) -> tuple[str, ...]:
    return tuple(str(address) for address in addresses if address is not None)


def _pod(namespace: str | None, name: str | None) -> str:
    return f"{namespace}/{name}" if name else ""
