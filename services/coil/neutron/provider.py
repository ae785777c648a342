"""What Octavia's providers of load balancers can do, as far as Services ask for it.

What a provider lacks is not asked of it: the call would be refused, or leave the load balancer in ERROR. It is told in
an Event on the Service instead.
"""

from dataclasses import dataclass
from typing import Final

ROUND_ROBIN: Final = "ROUND_ROBIN"
SOURCE_IP_PORT: Final = "SOURCE_IP_PORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider. `algorithm` is how it chooses a member.

    `affinity` says whether the connections of a client can be kept with one member, `source_ranges` whether clients can
    be admitted by their address, `member_subnets` whether a member has to name its subnet, and `keeps_clients` whether
    members see the client's address rather than the load balancer's.
    """

    name: str
    algorithm: str
    protocols: frozenset[str]
    affinity: bool
    source_ranges: bool
    member_subnets: bool
    keeps_clients: bool


_AMPHORA: Final = Provider(
    name="amphora",
    algorithm=ROUND_ROBIN,
    protocols=frozenset({"TCP", "UDP", "SCTP"}),
    affinity=True,
    source_ranges=True,
    member_subnets=False,
    keeps_clients=False,
)
_OVN: Final = Provider(
    name="ovn",
    algorithm=SOURCE_IP_PORT,
    protocols=frozenset({"TCP", "UDP", "SCTP"}),
    affinity=False,
    source_ranges=False,
    member_subnets=True,
    keeps_clients=True,
)
PROVIDERS: Final = {provider.name: provider for provider in (_AMPHORA, _OVN)}
"""The providers whose abilities are known, by Octavia's name for them."""
