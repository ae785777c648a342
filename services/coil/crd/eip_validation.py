"""Validates EgressGateways and EgressGatewayPolicies: the rules that each keeps by itself, as lists of field errors.

Used twice: admission refuses what breaks a rule, and the controller tells of those that were stored past admission. An
empty list means valid. What two objects may not do together is `coil.crd.eip_conflict`'s business.
"""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network

from coil.crd.cidr import Span, Version, count_addresses, parse_address, parse_cidr, parse_span
from coil.crd.egress_gateway import EgressGateway, EgressGatewaySpec
from coil.crd.egress_gateway_policy import AppliedTo, EgressGatewayPolicy, EgressIP
from coil.crd.names import LABEL_VALUE_LENGTH
from coil.crd.validation import FieldError, validate_selector

VERSIONS: tuple[Version, ...] = (4, 6)

_UNUSABLE = (
    ("this host", IPv4Network("0.0.0.0/8")),
    ("loopback", IPv4Network("127.0.0.0/8")),
    ("link-local", IPv4Network("169.254.0.0/16")),
    ("multicast", IPv4Network("224.0.0.0/4")),
    ("broadcast", IPv4Network("255.255.255.255/32")),
    ("this host and loopback", IPv6Network("::/127")),
    ("IPv4-mapped", IPv6Network("::ffff:0:0/96")),
    ("link-local", IPv6Network("fe80::/10")),
    ("multicast", IPv6Network("ff00::/8")),
)
"""What nobody beyond the link would answer to (RFC 6890; RFC 4291, 2.4)."""


def validate_gateway(gateway: EgressGateway) -> list[FieldError]:
    """The rules that a gateway keeps, whatever else is in the cluster."""
    spec = gateway.spec
    selector = "spec.nodeSelector.selector"
    errors: list[FieldError] = []
    if spec.node_selector.selector.empty:
        errors.append(FieldError(selector, "must not be empty: it would have every node carry addresses"))
    errors += validate_selector(spec.node_selector.selector, path=selector)
    if spec.allowed_namespaces is not None:
        errors += validate_selector(spec.allowed_namespaces, path="spec.allowedNamespaces")
    for path, limit in (
        ("spec.ranges.limit", spec.ranges.limit),
        ("spec.nodeSelector.limit", spec.node_selector.limit),
    ):
        if limit < 1:
            errors.append(FieldError(path, "must be at least 1"))
    errors += _validate_addresses(spec)
    errors += _validate_default_eip(spec)
    return errors


def validate_policy(policy: EgressGatewayPolicy) -> list[FieldError]:
    """The rules that a policy keeps, whatever else is in the cluster."""
    spec = policy.spec
    errors: list[FieldError] = []
    if len(policy.metadata.name) > LABEL_VALUE_LENGTH:
        message = f"must be no more than {LABEL_VALUE_LENGTH} characters: its EgressEndpointSlices carry it as a label"
        errors.append(FieldError("metadata.name", message))
    errors += _validate_egress_ip(spec.egress_ip)
    errors += _validate_applied_to(spec.applied_to)
    errors += _validate_cidrs(spec.dest_subnet, path="spec.destSubnet")
    return errors


def validate_policy_update(old: EgressGatewayPolicy, new: EgressGatewayPolicy) -> list[FieldError]:
    """The rules of a change, on top of `validate_policy(new)`: gateway and address stay for good."""
    pairs = (
        ("spec.egressGatewayName", old.spec.egress_gateway_name, new.spec.egress_gateway_name),
        ("spec.egressIP", old.spec.egress_ip, new.spec.egress_ip),
    )
    message = "is immutable; delete the policy and create another"
    return [FieldError(path, message) for path, before, after in pairs if before != after]


def _validate_addresses(spec: EgressGatewaySpec) -> Iterator[FieldError]:
    counts: list[int] = []
    wrong = False
    for version in VERSIONS:
        spans: list[Span] = []
        for path, text in spec.offers(version):
            try:
                span = parse_span(text, version) if text else None
            except ValueError as error:
                wrong = True
                yield FieldError(path, str(error))
                continue
            if span is None:
                continue
            yield from _unusable(path, text, span, version)
            if any(first <= span[1] and span[0] <= last for first, last in spans):
                yield FieldError(path, f"{text!r} has addresses that an earlier entry has; each is to be there once")
            spans.append(span)
        counts.append(count_addresses(spans))
    if not wrong and all(counts) and counts[0] != counts[1]:
        message = f"must have equally many addresses of both families, not {counts[0]} of IPv4 and {counts[1]} of IPv6"
        yield FieldError("spec.ippools" if spec.ippools.ipv4 or spec.ippools.ipv6 else "spec.ranges", message)


def _validate_default_eip(spec: EgressGatewaySpec) -> Iterator[FieldError]:
    asked: tuple[tuple[Version, str], ...] = ((4, spec.ippools.ipv4_default_eip), (6, spec.ippools.ipv6_default_eip))
    for version, text in asked:
        if not text:
            continue
        path = f"spec.ippools.ipv{version}DefaultEIP"
        try:
            number = int(parse_address(text, version))
        except ValueError as error:
            yield FieldError(path, str(error))
            continue
        spans = (try_span(each, version) for _, each in spec.offers(version))
        if not any(span is not None and span[0] <= number <= span[1] for span in spans):
            yield FieldError(path, f"{text!r} is not an address of the gateway")


def try_span(text: str, version: Version) -> Span | None:
    """None for a text that means nothing; what is wrong with it is `validate_gateway`'s to say."""
    try:
        return parse_span(text, version)
    except ValueError:
        return None


def _unusable(path: str, text: str, span: Span, version: Version) -> Iterator[FieldError]:
    for name, network in _UNUSABLE:
        first, last = int(network.network_address), int(network.broadcast_address)
        if network.version == version and first <= span[1] and span[0] <= last:
            yield FieldError(path, f"{text!r} has addresses that no node can have: {network} ({name})")
            return


def _validate_egress_ip(egress_ip: EgressIP) -> Iterator[FieldError]:
    asked: tuple[tuple[Version, str], ...] = ((4, egress_ip.ipv4), (6, egress_ip.ipv6))
    for version, text in asked:
        if not text:
            continue
        try:
            parse_address(text, version)
        except ValueError as error:
            yield FieldError(f"spec.egressIP.ipv{version}", str(error))
    if egress_ip.use_node_ip and (egress_ip.ipv4 or egress_ip.ipv6):
        yield FieldError("spec.egressIP", "must not ask for an address and for the node's own (useNodeIP)")


def _validate_applied_to(applied_to: AppliedTo) -> Iterator[FieldError]:
    path = "spec.appliedTo"
    if (applied_to.pod_selector is None) == (not applied_to.pod_subnet):
        yield FieldError(path, "must have either a podSelector or a podSubnet")
    if applied_to.pod_selector is not None:
        yield from validate_selector(applied_to.pod_selector, path=f"{path}.podSelector")
    yield from _validate_cidrs(applied_to.pod_subnet, path=f"{path}.podSubnet")


def _validate_cidrs(texts: Sequence[str], *, path: str) -> Iterator[FieldError]:
    for position, text in enumerate(texts):
        try:
            parse_cidr(text)
        except ValueError as error:
            yield FieldError(f"{path}[{position}]", str(error))
