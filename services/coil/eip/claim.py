"""What placement is about: floating addresses (EIPs), the policies that want one, the nodes that may carry it.

Bottom of the room. An EIP is one address, or a pair of both families that goes everywhere together.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import TypeVar

from coil.crd.egress_gateway import (
    AddressPolicy,
    EgressGatewaySpec,
    IpPools,
    NodePolicy,
    NodeSelector,
    PolicyRef,
    Sharing,
)
from coil.crd.egress_gateway_policy import AllocatorPolicy, EgressGatewayPolicy
from coil.crd.names import NodeName
from coil.eip.address_range import AddressRanges, RangeError, parse_ranges
from coil.kernel.family import Family, IPAddress

_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Eip:
    """At least one of the two; as a request, the parts that matter to whoever asks."""

    ipv4: IPv4Address | None = None
    ipv6: IPv6Address | None = None

    def __post_init__(self) -> None:
        if self.ipv4 is None and self.ipv6 is None:
            raise ValueError("an EIP has at least one address")

    def __str__(self) -> str:
        return " and ".join(str(part) for part in (self.ipv4, self.ipv6) if part is not None)

    def agrees(self, other: "Eip") -> bool:
        """Whether all that `other` has is here, too: then it can be served by this one."""
        return other.ipv4 in {None, self.ipv4} and other.ipv6 in {None, self.ipv6}


class RefusalReason(StrEnum):
    """One CamelCase word each: the reason of a condition of the policy."""

    INVALID = "EgressIPInvalid"
    OUT_OF_RANGE = "EgressIPOutOfRange"
    PAIR = "EgressIPPairConflict"
    """One of the two addresses that were asked for is bound to another partner."""
    TAKEN = "EgressIPTaken"
    """The address that was asked for is bound to a policy of another namespace, or is a Node's."""
    NO_ADDRESS = "NoAddress"
    """The gateway has none, or others have all of them."""
    FULL = "GatewayFull"
    """The gateway serves as many policies as it may."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a policy gets no address. `message` is a sentence for whoever wrote the policy."""

    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a policy asks for. `asked` is None with `use_node_ip`, and for any address of the gateway; with `unused`,
    for one that nobody has. `cluster_policy` is the EgressClusterPolicy that it stands for, if for any: all that stand
    for one leave together. `since` is the creation time as the API server writes it: the older of two is served first.
    """

    policy: PolicyRef
    asked: Eip | None = None
    unused: bool = False
    use_node_ip: bool = False
    cluster_policy: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that the gateway selects. `ready`: it can carry addresses now."""

    node: NodeName
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """`eip` None: the node's own addresses. `node` None: nobody can carry it now."""

    policy: PolicyRef
    eip: Eip | None
    node: NodeName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRules:
    """A gateway's spec, parsed. A family without ranges has an empty `AddressRanges`; two families are of one size."""

    ipv4: AddressRanges
    ipv6: AddressRanges
    sharing: Sharing = Sharing.NAMESPACE
    address_policy: AddressPolicy = AddressPolicy.RANDOM
    address_limit: int = 5
    node_policy: NodePolicy = NodePolicy.AVERAGE
    node_limit: int = 5
    default_eip: Eip | None = None
    preferred: Mapping[IPAddress, NodeName] = field(default_factory=dict)

    def preferred_node(self, eip: Eip) -> NodeName | None:
        """Where somebody wants the EIP to be."""
        parts = [part for part in (eip.ipv4, eip.ipv6) if part is not None]
        return next((self.preferred[part] for part in parts if part in self.preferred), None)

    def tenant(self, claim: Claim) -> str:
        """Two policies may have one address if this is the same of both."""
        if self.sharing is Sharing.ANY:
            return ""
        # No namespace is called so.
        return f"EgressClusterPolicy {claim.cluster_policy}" if claim.cluster_policy else claim.policy.namespace


def parse_rules(spec: EgressGatewaySpec) -> GatewayRules:
    """Raises RangeError, with a sentence for whoever wrote the gateway. The spelling `AverageSelecton` becomes the
    right one here; an unknown policy counts as the default, and a limit as at least 1.
    """
    ranges = spec.ranges
    ipv4 = parse_ranges((text for _, text in spec.offers(4)), Family.IPV4)
    ipv6 = parse_ranges((text for _, text in spec.offers(6)), Family.IPV6)
    if ipv4.size and ipv6.size and ipv4.size != ipv6.size:
        text = f"the ranges have {ipv4.size} IPv4 addresses but {ipv6.size} IPv6 addresses"
        raise RangeError(f"{text}: give both families equally many, or one of them none")
    node_policy = _member(NodePolicy, spec.node_selector.policy, NodePolicy.AVERAGE)
    return GatewayRules(
        ipv4=ipv4,
        ipv6=ipv6,
        sharing=Sharing.ANY if spec.is_shared else Sharing.NAMESPACE,
        address_policy=_member(AddressPolicy, ranges.policy, AddressPolicy.RANDOM),
        address_limit=max(1, ranges.limit),
        node_policy=NodePolicy.AVERAGE if node_policy is NodePolicy.AVERAGE_AS_PROPOSED else node_policy,
        node_limit=max(1, spec.node_selector.limit),
        default_eip=_parse_default_eip(spec.ippools),
        preferred=_parse_preferred(spec.node_selector),
    )


def _parse_preferred(selector: NodeSelector) -> dict[IPAddress, NodeName]:
    """The first entry of an address counts. A text that is no address means nothing."""
    found: dict[IPAddress, NodeName] = {}
    for entry in selector.preferred_nodes:
        with suppress(ValueError):
            found.setdefault(ip_address(entry.eip), NodeName(entry.node))
    return found


def _parse_default_eip(pools: IpPools) -> Eip | None:
    """None without pools. Raises RangeError. egressgateway writes an address of the pool into the spec where none is
    given; here it is the first one, which nobody has to write down.
    """
    ipv4 = pools.ipv4_default_eip or _first(pools.ipv4, Family.IPV4)
    ipv6 = pools.ipv6_default_eip or _first(pools.ipv6, Family.IPV6)
    try:
        return parse_eip(ipv4, ipv6)
    except AddressValueError as error:
        raise RangeError(f"spec.ippools: {error}") from error


def _first(texts: Sequence[str], family: Family) -> str:
    """Of the first entry that is not empty, whichever address is the lowest of all. "" if there is none."""
    for text in texts:
        if text:
            return str(parse_ranges([text], family).nth(0))
    return ""


def parse_claim(
    policy: EgressGatewayPolicy, default_eip: Eip | None = None, *, cluster_policy: str = ""
) -> Claim | Refusal:
    """What a policy asks for, or what is wrong with it. `default_eip` is the gateway's; `cluster_policy` is the
    EgressClusterPolicy that it stands for, whatever it says of its owners.
    """
    requested, metadata = policy.spec.egress_ip, policy.metadata
    try:
        asked = parse_eip(requested.ipv4, requested.ipv6)
    except AddressValueError as error:
        return Refusal(RefusalReason.INVALID, f"spec.egressIP: {error}")
    if requested.use_node_ip and asked is not None:
        return Refusal(RefusalReason.INVALID, "spec.egressIP: useNodeIP and an address exclude each other")
    since = metadata.creation_timestamp
    is_default = requested.allocator_policy == AllocatorPolicy.DEFAULT and not requested.use_node_ip and asked is None
    return Claim(
        policy=policy_ref(policy),
        asked=default_eip if is_default else asked,
        unused=requested.allocator_policy == AllocatorPolicy.ROUND_ROBIN,
        use_node_ip=requested.use_node_ip,
        cluster_policy=cluster_policy,
        since="" if since is None else since.isoformat(),
    )


def parse_eip(ipv4: str, ipv6: str) -> Eip | None:
    """The EIP of these texts, None of empty ones. Raises AddressValueError."""
    if not ipv4 and not ipv6:
        return None
    return Eip(IPv4Address(ipv4) if ipv4 else None, IPv6Address(ipv6) if ipv6 else None)


def policy_ref(policy: EgressGatewayPolicy) -> PolicyRef:
    return PolicyRef(namespace=policy.metadata.namespace, name=policy.metadata.name)


def _member(kind: type[_Choice], text: str, default: _Choice) -> _Choice:
    return next((member for member in kind if member == text), default)
