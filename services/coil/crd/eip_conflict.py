"""Validates gateways and policies against each other: what one may not take, or give up, because of others. Pure.

Addresses that two gateways had would be announced by two nodes, and one that leaves a gateway while a policy has it
would cut the policy's traffic. A tenant may not ask for an address by which another tenant is known outside. An address
of a Node, a pod or a Service that became an EIP would cut that off.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import accumulate

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import Node, Service, ServiceCidr
from coil.crd.cidr import UNROUTED, OwnedNetwork, Span, Version, merge_spans, parse_address
from coil.crd.egress_gateway import EgressGateway, EgressGatewaySpec
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.eip_validation import VERSIONS, try_span
from coil.crd.resource import object_key
from coil.crd.validation import FieldError, render_names

_SHOWN_RANGES = 3


@dataclass(frozen=True, slots=True, order=True)
class TakenSpan:
    """Addresses that belong to somebody: `text` is how they were written, `owner` says whose they are."""

    first: int
    last: int
    text: str
    owner: str


Taken = Mapping[Version, Sequence[TakenSpan]]
"""Sorted."""

_UNROUTED: Mapping[Version, Sequence[TakenSpan]] = {
    version: [
        TakenSpan(int(network.network_address), int(network.broadcast_address), str(network), "a link or a host alone")
        for network in UNROUTED
        if network.version == version
    ]
    for version in VERSIONS
}


def collect_taken(
    *,
    nodes: Iterable[Node] = (),
    pools: Iterable[AddressPool] = (),
    service_cidrs: Iterable[ServiceCidr] = (),
    services: Iterable[Service] = (),
    tunnels: Iterable[IPv4Network | IPv6Network] = (),
    others: Iterable[OwnedNetwork] = (),
) -> Taken:
    """The cluster's own addresses: of Nodes and the pods that they have networks for, of pools, Services and tunnels,
    and of `others`.

    What is malformed is passed over: others report it. `services` are those whose own addresses count.
    """
    found: dict[Version, list[TakenSpan]] = {version: [] for version in VERSIONS}

    def add(texts: Iterable[object], owner: str) -> None:
        for text in texts:
            with suppress(ValueError):  # "None" of a headless Service
                network = ip_network(str(text), strict=False)
                first, last = int(network.network_address), int(network.broadcast_address)
                found[network.version].append(TakenSpan(first, last, str(text), owner))

    for node in nodes:
        add(node.addresses(), f"the Node {node.metadata.name!r}")
        add(node.pod_networks(), f"the pods of the Node {node.metadata.name!r}")
    for pool in pools:
        texts = (text for subnet in pool.spec.subnets for text in (subnet.ipv4, subnet.ipv6))
        add(filter(None, texts), f"the AddressPool {pool.metadata.name!r}")
    for service_cidr in service_cidrs:
        add(service_cidr.spec.cidrs, f"the ServiceCIDR {service_cidr.metadata.name!r}")
    for service in services:
        add(service.spec.cluster_ips, f"the Service {object_key(service.metadata)!r}")
    add(tunnels, "the tunnels between nodes")
    for network, owner in others:
        add([network], owner)
    return {version: sorted(spans) for version, spans in found.items()}


def validate_untaken_ranges(gateway: EgressGateway, taken: Taken) -> list[FieldError]:
    """Each entry of `gateway` that has addresses of the cluster's own, with some of those."""
    return list(_find_overlaps(gateway, taken))


def find_inner_destinations(texts: Iterable[str], taken: Taken) -> Iterator[tuple[str, str]]:
    """Those of the destinations that lie within addresses of the cluster's own, or within what is never routed, and
    whose the first of these is. Of a destination that merely contains some, these are no part.

    O(n log n) in the spans taken, once for a family.
    """
    spans: dict[Version, list[TakenSpan]] = {}
    united: dict[Version, list[Span]] = {}
    for text in texts:
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            continue
        version, first, last = network.version, int(network.network_address), int(network.broadcast_address)
        if version not in spans:
            spans[version] = sorted([*taken[version], *_UNROUTED[version]])
            united[version] = merge_spans((span.first, span.last) for span in spans[version])
        position = bisect_right(united[version], first, key=lambda span: span[0]) - 1
        if position >= 0 and last <= united[version][position][1]:
            yield text, next(span.owner for span in spans[version] if span.first <= first <= span.last)


def validate_disjoint_ranges(gateway: EgressGateway, others: Iterable[EgressGateway]) -> list[FieldError]:
    """Each entry of `gateway` that shares addresses with another gateway, with one of those it does so with.

    A gateway of the same name is skipped. O(n log n) in the entries of all.
    """
    others = [other for other in others if other.metadata.name != gateway.metadata.name]
    taken = {version: sorted(span for other in others for span in _entries(other, version)) for version in VERSIONS}
    return list(_find_overlaps(gateway, taken))


def validate_only_default(gateway: EgressGateway, others: Iterable[EgressGateway]) -> list[FieldError]:
    """Whether another gateway is the default one of the cluster already."""
    defaults = sorted(other.metadata.name for other in others if other.spec.cluster_default)
    found = [name for name in defaults if name != gateway.metadata.name]
    message = "must be true for one gateway only"
    return [FieldError("spec.clusterDefault", f"{message}, and is for {found[0]!r}")] if found else []


def validate_kept(old: EgressGateway, new: EgressGateway, policies: Iterable[EgressGatewayPolicy]) -> list[FieldError]:
    """The addresses that a policy has and that the change takes out of the gateway."""
    errors: list[FieldError] = []
    for (version, number), (text, users) in sorted(_allocated(old, policies).items()):
        if _inside(old.spec, version, number) and not _inside(new.spec, version, number):
            message = f"must keep {text}, which the policies {render_names(sorted(users))} have: delete them first"
            field = "ippools" if old.spec.ippools.ipv4 or old.spec.ippools.ipv6 else "ranges"
            errors.append(FieldError(f"spec.{field}.ipv{version}", message))
    return errors


def validate_offered(policy: EgressGatewayPolicy, gateway: EgressGateway) -> list[FieldError]:
    """The addresses that a policy asks for and its gateway does not have."""
    errors: list[FieldError] = []
    for version, number in _asked(policy).items():
        if _inside(gateway.spec, version, number):
            continue
        texts = [text for _, text in gateway.spec.offers(version) if text]
        more = ", …" if len(texts) > _SHOWN_RANGES else ""
        have = ", ".join(texts[:_SHOWN_RANGES]) + more if texts else f"no IPv{version} addresses"
        message = f"is not an address of the gateway {gateway.metadata.name!r}, which has {have}"
        errors.append(FieldError(f"spec.egressIP.ipv{version}", message))
    return errors


def validate_untaken(
    policy: EgressGatewayPolicy, others: Iterable[EgressGatewayPolicy], *, is_shared: bool
) -> list[FieldError]:
    """The addresses that a policy asks for, and may not have because of other policies.

    Unless the gateway shares its addresses between namespaces, one that only policies of other namespaces have is not
    to be asked for. An address that may be shared may not be one of a pair with another partner. The names of policies
    of other namespaces stay untold. `policy` itself is skipped. Ranges of gateways are disjoint, so an address tells
    the gateway.
    """
    asked = _asked(policy)
    key, namespace = object_key(policy.metadata), policy.metadata.namespace
    holders = [(other, _held(other)) for other in others if asked and object_key(other.metadata) != key]
    errors: list[FieldError] = []
    for version, number in asked.items():
        path = f"spec.egressIP.ipv{version}"
        sharing = [(other, held) for other, held in holders if held.get(version) == number]
        own = [(other, held) for other, held in sharing if is_shared or other.metadata.namespace == namespace]
        if sharing and not own:
            errors.append(FieldError(path, "is the address of a policy in another namespace; ask for another"))
        for other, held in own:
            if any(held.get(family, wanted) != wanted for family, wanted in asked.items()):
                owner = f"the policy {object_key(other.metadata)}"
                if other.metadata.namespace != namespace:
                    owner = "a policy in another namespace"
                errors.append(FieldError(path, f"belongs to a pair with another address, which {owner} has"))
                break
    return errors


def _find_overlaps(gateway: EgressGateway, taken: Taken) -> Iterator[FieldError]:
    for version in VERSIONS:
        theirs = taken[version]
        # Of all that begin before an entry ends, the one that ends last is the one to meet it, if any does.
        longest = list(accumulate(theirs, _longer))
        for path, text in gateway.spec.offers(version):
            span = try_span(text, version)
            before = 0 if span is None else bisect_right(theirs, span[1], key=lambda entry: entry.first)
            if span is not None and before and (other := longest[before - 1]).last >= span[0]:
                message = f"{text!r} overlaps {other.text!r} of {other.owner}"
                yield FieldError(path, message)


def _entries(gateway: EgressGateway, version: Version) -> Iterator[TakenSpan]:
    for _, text in gateway.spec.offers(version):
        if (span := try_span(text, version)) is not None:
            yield TakenSpan(*span, text, f"the gateway {gateway.metadata.name!r}")


def _longer(one: TakenSpan, other: TakenSpan) -> TakenSpan:
    return one if one.last >= other.last else other


@lru_cache(maxsize=256)
def _spans(texts: tuple[str, ...], version: Version) -> Sequence[Span]:
    return merge_spans(span for text in texts if (span := try_span(text, version)) is not None)


def is_offered(spec: EgressGatewaySpec, address: str) -> bool:
    """Whether the text is an address of the gateway."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return _inside(spec, found.version, int(found))


def _inside(spec: EgressGatewaySpec, version: Version, number: int) -> bool:
    spans = _spans(tuple(text for _, text in spec.offers(version)), version)
    before = bisect_right(spans, number, key=lambda span: span[0])
    return before > 0 and spans[before - 1][1] >= number


def _numbers(ipv4: str, ipv6: str) -> dict[Version, int]:
    """The addresses of a pair that are there and can be read."""
    numbers: dict[Version, int] = {}
    pair: tuple[tuple[Version, str], ...] = ((4, ipv4), (6, ipv6))
    for version, text in pair:
        try:
            numbers[version] = int(parse_address(text, version))
        except ValueError:
            continue
    return numbers


def _asked(policy: EgressGatewayPolicy) -> dict[Version, int]:
    return _numbers(policy.spec.egress_ip.ipv4, policy.spec.egress_ip.ipv6)


def _held(policy: EgressGatewayPolicy) -> dict[Version, int]:
    """What a policy has; or asks for, until the controller has said whether it gets it."""
    status = policy.status
    held = _numbers(status.eip.ipv4, status.eip.ipv6)
    return held if held or status.conditions else _asked(policy)


def _allocated(
    gateway: EgressGateway, policies: Iterable[EgressGatewayPolicy]
) -> dict[tuple[Version, int], tuple[str, set[str]]]:
    """Address and the policies that have it, by family and number: as gateway and policies tell."""
    name = gateway.metadata.name
    pairs = [
        (eip.ipv4, eip.ipv6, f"{user.namespace}/{user.name}")
        for node in gateway.status.node_list
        for eip in node.eips
        for user in eip.policies
    ]
    pairs += [
        (policy.status.eip.ipv4, policy.status.eip.ipv6, object_key(policy.metadata))
        for policy in policies
        if policy.status.egress_gateway_name == name
    ]
    found: dict[tuple[Version, int], tuple[str, set[str]]] = {}
    for ipv4, ipv6, user in pairs:
        for version, number in _numbers(ipv4, ipv6).items():
            found.setdefault((version, number), (ipv4 if version == 4 else ipv6, set()))[1].add(user)
    return found
