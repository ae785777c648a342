"""The table that keeps pods to their own addresses (BCP 38, RFC 2827): what enters the node by a pod's link has a
source that the node routes to that link, or is dropped and counted. Pure.

Links are told by their group (`coil.kernel.link.LinkGroup`), so the table is the same whatever pods there are. Which
address is whose, the routing tables say: no set has to follow them.

Where a pod's route is gone, what the pod sends is dropped; answers could not reach it either. IPv6's unspecified
source, of duplicate address detection (RFC 4862), is let pass: the kernel forwards no such packet.
"""

from typing import Final

from coil.kernel.link import POD_LINK_BITS, POD_LINK_MASK
from coil.kernel.nft_table import (
    MISSING,
    ChainType,
    Comparison,
    Count,
    Field,
    HasBits,
    Hook,
    Jump,
    Match,
    NftChain,
    NftTable,
    Priority,
    RegularChain,
    Verdict,
)

TABLE: Final = "coil-sources"
SPOOFED: Final = "spoofed"
"""The counter of what was dropped."""


def plan_source_table() -> NftTable:
    """The same for all nodes. Its chain is before conntrack, which would have room for any number of false sources."""
    from_pods = RegularChain(
        name="from_pods",
        rules=(
            (Match(Field.IPV6_SOURCE, Comparison.IS, "::"), Verdict.RETURN),
            (Match(Field.RETURN_LINK, Comparison.IS, MISSING), Count(SPOOFED), Verdict.DROP),
        ),
    )
    prerouting = NftChain(
        name="prerouting",
        type=ChainType.FILTER,
        hook=Hook.PREROUTING,
        priority=Priority.RAW,
        rules=(
            (
                Match(Field.INPUT_GROUP, Comparison.IS, HasBits(POD_LINK_BITS, POD_LINK_MASK)),
                Jump(from_pods.name),
            ),
        ),
    )
    return NftTable(name=TABLE, chains=(from_pods, prerouting), counters=(SPOOFED,))
