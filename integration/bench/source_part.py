"""What it costs a node to keep pods to their own addresses: packets forwarded with the table of sources, and without.

Nothing else looks at the packets, not even connection tracking, so the table's share is the largest that it can be.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing
from typing import Final

from coil.kernel.link import LinkGroup
from coil.nft.element_sync import load_elements
from coil.podnet.source_table import plan_source_table
from integration.bench.eip_crowd import Crowd
from integration.bench.eip_passage import Passage, Traffic
from integration.bench.figure import Better, Figure, Reading
from integration.bench.part import Part
from integration.bench.room import require_room
from integration.bench.sample import median, paired_ratios, spread

FIGURE = Figure("forward.verify_source", "1/s", Better.HIGHER, peer="without the table")
_ROUNDS: Final = 25
_SECONDS: Final = 0.2


def measure_sources(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """Rounds of both in alternation."""
    require_room()
    with ExitStack() as stack:
        verified, plain = passages = [stack.enter_context(closing(Passage(Crowd(policies=1)))) for _ in range(2)]
        for passage in passages:
            passage.gateway.ip("link", "set", "pods", "group", str(int(LinkGroup.POD)))
        verified.gateway.call(lambda: load_elements([plan_source_table()], {}))
        rates: dict[Passage, list[float]] = {verified: [], plain: []}
        for _ in range(_ROUNDS):
            for passage, taken in rates.items():
                taken.append(passage.measure(Traffic.ESTABLISHED, _SECONDS))
    yield Reading(
        figure=FIGURE,
        value=median(rates[verified]),
        peer_value=median(rates[plain]),
        runs=_ROUNDS,
        note="datagrams sent and forwarded by one core, without connection tracking; runs "
        f"{spread(rates[verified])} against {spread(rates[plain])}; neighbouring runs have the ratio "
        f"{median(paired_ratios(rates[verified], rates[plain])):.2f}",
    )


PART = Part("sources", (FIGURE,), measure_sources)
