"""Checks changes of EgressGatewayPolicies, which tenants may make, before they are stored, and of the kinds of
egressgateway 0.6 that they stand for.

Every replica answers. A new policy must use a gateway that allows its namespace; an address that it asks for must be
one of the gateway's and no other tenant's. To select pods by address is to select those of other namespaces, too: that
takes a permission, checked by a SubjectAccessReview, that no tenant has by default; and so does a destination within
the cluster, which would see the tenant as a gateway node, or as its floating address. What a namespace and a
gateway may have is limited (`coil.crd.eip_limit`); of requests at the same time, more may be let in, which the nodes
or the gateway then do not serve. An update is refused only for rules that it breaks itself. The controller checks again
whenever it acts, as labels and gateways change.

What an EgressPolicy or an EgressClusterPolicy asks for, the controller asks for in its own name, and it has no such
permission, whoever wrote the policy: destinations within the cluster are refused in them. A selection by address is
accepted, with a warning, as egressgateway accepts it: it selects nothing there, and the controller reports it here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from coil.admission.review import (
    ALLOWED,
    AdmissionRequest,
    Allowed,
    Invalid,
    Operation,
    ReviewError,
    Unavailable,
    Verdict,
    decode_object,
)
from coil.admission.server import AdmissionHandler
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.egress_policy import EgressClusterPolicy, EgressPolicy, cluster_policy_of
from coil.crd.eip_conflict import find_inner_destinations, validate_offered, validate_untaken
from coil.crd.eip_limit import NamespaceLimits, count_networks, validate_gateway_usage, validate_usage
from coil.crd.eip_validation import validate_policy, validate_policy_update
from coil.crd.meta import ObjectMeta
from coil.crd.validation import FieldError, select_new, validate_selector
from coil.eip.gateway_choice import ChoiceReason, NoGateway, choose_gateway
from coil.eip.policy_mirror import Source, mirror_spec, stands_for
from coil_egress_controller.eip.admission_reader import AdmissionReader, UnknownStateError, changes_spec, try_decode

POLICY_PATH = "/validate-egressgateway-spidernet-io-v1beta1-egressgatewaypolicy"
EGRESS_POLICY_PATH = "/validate-egressgateway-spidernet-io-v1beta1-egresspolicy"
EGRESS_CLUSTER_POLICY_PATH = "/validate-egressgateway-spidernet-io-v1beta1-egressclusterpolicy"

USE = "use"
POD_SUBNET = "podsubnet"
"""The permission to select pods by address, and to name addresses of the cluster as destinations: the verb, and the
subresource of `egressgatewaypolicies`.
"""

AnyPolicy: TypeAlias = EgressGatewayPolicy | Source
P = TypeVar("P", bound=AnyPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Of a policy, or of one of the kinds that policies stand for, as that of a policy. `old` is None for a new one,
    and for one whose old state cannot be decoded; `namespace` is "" for an EgressClusterPolicy.
    """

    request: AdmissionRequest
    old: EgressGatewayPolicy | None
    new: EgressGatewayPolicy
    is_mirrored: bool

    @property
    def namespace(self) -> str:
        return self.request.namespace


class PolicyAdmission:
    """`policies_per_gateway` is the most that an EgressGateway may have. Without `serves_cluster_policies`, nothing
    stands for an EgressClusterPolicy, whoever says so.
    """

    def __init__(
        self,
        reader: AdmissionReader,
        *,
        limits: NamespaceLimits,
        policies_per_gateway: int,
        serves_cluster_policies: bool = False,
    ) -> None:
        self._reader = reader
        self._limits = limits
        self._policies_per_gateway = policies_per_gateway
        self._serves_cluster_policies = serves_cluster_policies

    @property
    def handlers(self) -> Mapping[str, AdmissionHandler]:
        return {
            POLICY_PATH: self.validate,
            EGRESS_POLICY_PATH: self.validate_egress_policy,
            EGRESS_CLUSTER_POLICY_PATH: self.validate_egress_cluster_policy,
        }

    async def validate(self, request: AdmissionRequest) -> Verdict:
        """Refuse violations of rules, with their fields. Raises ReviewError."""
        return await self._validate(request, EgressGatewayPolicy)

    async def validate_egress_policy(self, request: AdmissionRequest) -> Verdict:
        """As `validate`."""
        return await self._validate(request, EgressPolicy)

    async def validate_egress_cluster_policy(self, request: AdmissionRequest) -> Verdict:
        """As `validate`; limits are checked when the policies are created that stand for it."""
        return await self._validate(request, EgressClusterPolicy, _validate_namespace_selector)

    async def _validate(
        self, request: AdmissionRequest, kind: type[P], validate_more: Callable[[P], list[FieldError]] | None = None
    ) -> Verdict:
        if request.operation not in {Operation.CREATE, Operation.UPDATE}:
            return ALLOWED
        if request.operation is Operation.UPDATE and not changes_spec(request):
            return ALLOWED
        try:
            new = decode_object(request.object, kind)
        except ReviewError as error:
            return Invalid([FieldError("spec", str(error))])
        old = None if request.operation is Operation.CREATE else try_decode(request.old_object, kind)
        change = _Change(
            request=request,
            old=None if old is None else _as_policy(old, request.namespace),
            new=_as_policy(new, request.namespace),
            is_mirrored=kind is not EgressGatewayPolicy,
        )
        faults = validate_change(change.old, change.new)
        if validate_more is not None:
            faults += select_new(validate_more(new), [] if old is None else validate_more(old))
        if faults:
            return Invalid(faults)
        try:
            return await self._compare(change)
        except UnknownStateError as error:
            return Unavailable(str(error))

    async def _compare(self, change: _Change) -> Verdict:
        """With other objects. Raises UnknownStateError."""
        faults = await self._check_right(change)
        is_limited = await self._is_limited(change)
        if is_limited:
            faults += validate_usage(change.new, change.old, await self._reader.known_policies(), self._limits)
        warnings: list[str] = []
        if change.is_mirrored and change.new.spec.applied_to.pod_subnet:
            warnings.append("spec.appliedTo.podSubnet selects no pods in this kind; use an EgressGatewayPolicy")
        match await self._choose_gateway(change) if change.old is None else None:
            case EgressGateway() as gateway:
                faults += await self._check_gateway(change, gateway, is_limited=is_limited)
            case NoGateway(ChoiceReason.NOT_ALLOWED, message) if change.namespace:
                faults.append(FieldError("spec.egressGatewayName", message))
            case NoGateway(ChoiceReason.NOT_FOUND | ChoiceReason.NO_DEFAULT, message):
                # Manifests may be applied in any order, a policy before its gateway.
                warnings.append(f"{message}; the policy waits")
        return Invalid(faults) if faults else Allowed(warnings=warnings)

    async def _check_right(self, change: _Change) -> list[FieldError]:
        faults = []
        policy, old = change.new, change.old
        right = f"which takes the right to {USE!r} {EGRESS_GATEWAY_POLICIES.plural}/{POD_SUBNET}"
        if change.is_mirrored:
            right = f"which takes an {EGRESS_GATEWAY_POLICIES.kind} and a right"
        elif policy.spec.applied_to.pod_subnet:
            message = f"selects pods of all namespaces, {right}: use a podSelector, or ask an administrator"
            faults.append(FieldError("spec.appliedTo.podSubnet", message))
        known = frozenset(old.spec.dest_subnet) if old is not None else frozenset[str]()
        if added := [text for text in policy.spec.dest_subnet if text not in known]:
            for text, owner in find_inner_destinations(added, (await self._reader.cluster()).inner()):
                position = policy.spec.dest_subnet.index(text)
                message = f"{text} belongs to {owner}, {right}: name addresses outside, or ask an administrator"
                faults.append(FieldError(f"spec.destSubnet[{position}]", message))
        if not faults or change.is_mirrored:
            return faults
        may = await self._reader.may(
            change.request.user_info,
            verb=USE,
            resource=EGRESS_GATEWAY_POLICIES.plural,
            subresource=POD_SUBNET,
            namespace=change.namespace,
        )
        return [] if may else faults

    async def _is_limited(self, change: _Change) -> bool:
        """Whether limits count: of a policy that takes more than before, and stands for no EgressClusterPolicy."""
        if not change.namespace:
            return False
        if change.old is not None and count_networks(change.new) <= count_networks(change.old):
            return False
        return not (self._serves_cluster_policies and await self._stands_for_cluster_policy(change.new))

    async def _stands_for_cluster_policy(self, policy: EgressGatewayPolicy) -> bool:
        """A tenant that has all that it may have must not keep an administrator's policy out. Its nodes serve the older
        policies of a namespace, and drop what the others are about.
        """
        name = cluster_policy_of(policy.metadata)
        source = await self._reader.cluster_policy(name) if name else None
        namespace = await self._reader.namespace(policy.metadata.namespace) if source is not None else None
        return source is not None and namespace is not None and stands_for(policy, source, namespace)

    async def _choose_gateway(self, change: _Change) -> EgressGateway | NoGateway:
        found = await self._reader.namespace(change.namespace) if change.namespace else None
        labels = {} if found is None else found.metadata.labels
        spec = change.new.spec
        if name := spec.egress_gateway_name:
            gateway = await self._reader.gateway(name)
            gateways = {} if gateway is None else {name: gateway}
        else:
            gateways = {gateway.metadata.name: gateway for gateway in await self._reader.gateways()}
        return choose_gateway(spec, namespace_labels=labels, gateway=gateways.get, gateways=gateways.values())

    async def _check_gateway(self, change: _Change, gateway: EgressGateway, *, is_limited: bool) -> list[FieldError]:
        """Whether it has room, and the address that is asked for."""
        name = gateway.metadata.name
        if gateway.metadata.deleting:
            return [FieldError("spec.egressGatewayName", f"the gateway {name!r} is being deleted")]
        policy, asked = change.new, change.new.spec.egress_ip
        asks = bool(asked.ipv4 or asked.ipv6)
        policies = await self._reader.known_policies() if is_limited or asks else ()
        faults = validate_gateway_usage(policy, name, policies, self._policies_per_gateway) if is_limited else []
        if faults or not asks:
            return faults
        return validate_offered(policy, gateway) or validate_untaken(policy, policies, is_shared=gateway.spec.is_shared)


def validate_change(old: EgressGatewayPolicy | None, new: EgressGatewayPolicy) -> list[FieldError]:
    """The rules that a change breaks, or with `old` None a creation, without a look at other objects."""
    if old is None:
        return validate_policy(new)
    changed = validate_policy_update(old, new)
    return [*changed, *select_new(validate_policy(new), validate_policy(old))]


def _validate_namespace_selector(policy: EgressClusterPolicy) -> list[FieldError]:
    selector = policy.spec.applied_to.namespace_selector
    return [] if selector is None else list(validate_selector(selector, path="spec.appliedTo.namespaceSelector"))


def _as_policy(policy: AnyPolicy, namespace: str) -> EgressGatewayPolicy:
    """A request's object need not say where it is."""
    owners = policy.metadata.owner_references
    metadata = ObjectMeta(name=policy.metadata.name, namespace=namespace, owner_references=owners)
    spec = policy.spec if isinstance(policy, EgressGatewayPolicy) else mirror_spec(policy)
    return EgressGatewayPolicy(metadata=metadata, spec=spec)
