"""What it costs a node to keep pods to their own addresses: packets forwarded with the table of sources, and without.

Nothing else looks at the packets, not even connection tracking, so the table's share is the largest that it can be.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing

from coil.kernel.link import LinkGroup
from coil.nft.element_sync import load_elements
from coil.podnet.source_table import plan_source_table
from integration.bench.eip_crowd import Crowd
from integration.bench.eip_passage import Passage, Traffic, take_turns
from integration.bench.figure import Better, Figure, Reading
from integration.bench.part import Part
from integration.bench.room import require_room
from integration.bench.sample import median, paired_ratios, spread

FIGURE = Figure("forward.verify_source", "1/s", Better.HIGHER, peer="without the table")


def measure_sources(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """Rounds of both in alternation."""
    require_room()
    with ExitStack() as stack:
        verified, _ = passages = [stack.enter_context(closing(Passage(Crowd(policies=1)))) for _ in range(2)]
        for passage in passages:
            passage.gateway.ip("link", "set", "pods", "group", str(int(LinkGroup.POD)))
        verified.gateway.call(lambda: load_elements([plan_source_table()], {}))
        ours, theirs = zip(*take_turns(passages, Traffic.ESTABLISHED), strict=True)
    yield Reading(
        figure=FIGURE,
        value=median(ours),
        peer_value=median(theirs),
        runs=len(ours),
        note="datagrams sent and forwarded by one core, without connection tracking; runs "
        f"{spread(ours)} against {spread(theirs)}; neighbouring runs have the ratio "
        f"{median(paired_ratios(ours, theirs)):.2f}",
    )


PART = Part("sources", (FIGURE,), measure_sources)
