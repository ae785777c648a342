"""Checks changes of EgressGatewayPolicies, which tenants may make, before they are stored.

Every replica answers. A new policy must use a gateway that allows its namespace; an address that it asks for must be
one of the gateway's and no other tenant's. To select pods by address is to select those of other namespaces, too: that
takes a permission, checked by a SubjectAccessReview, that no tenant has by default; and so does a destination within
the cluster, which would see the tenant as a gateway node, or as its floating address. What a namespace may have is
limited (`coil.crd.eip_limit`); of requests at the same time, more may be let in, which the nodes then do not serve. An
update is refused only for rules that it breaks itself. The controller checks again whenever it acts, as labels and
gateways change.
"""

from collections.abc import Mapping

import msgspec

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
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy, EgressGatewayPolicySpec
from coil.crd.eip_conflict import find_inner_destinations, validate_offered, validate_untaken
from coil.crd.eip_limit import NamespaceLimits, count_networks, validate_usage
from coil.crd.eip_validation import validate_policy, validate_policy_update
from coil.crd.names import DEFAULT_GATEWAY, LABEL_DEFAULT_GATEWAY
from coil.crd.validation import FieldError, select_new
from coil.eip.gateway_choice import ChoiceReason, NoGateway, choose_gateway
from coil_egress_controller.eip.admission_reader import AdmissionReader, UnknownStateError, changes_spec, try_decode

POLICY_PATH = "/validate-egressgateway-spidernet-io-v1beta1-egressgatewaypolicy"

USE = "use"
POD_SUBNET = "podsubnet"
"""The permission to select pods by address, and to name addresses of the cluster as destinations: the verb, and the
subresource of `egressgatewaypolicies`.
"""


class PolicyAdmission:
    def __init__(self, reader: AdmissionReader, *, limits: NamespaceLimits) -> None:
        self._reader = reader
        self._limits = limits

    @property
    def handlers(self) -> Mapping[str, AdmissionHandler]:
        return {POLICY_PATH: self.validate}

    async def validate(self, request: AdmissionRequest) -> Verdict:
        """Refuse violations of rules, with their fields. Raises ReviewError."""
        if request.operation not in {Operation.CREATE, Operation.UPDATE}:
            return ALLOWED
        if request.operation is Operation.UPDATE and not changes_spec(request):
            return ALLOWED
        try:
            new = decode_object(request.object, EgressGatewayPolicy)
        except ReviewError as error:
            return Invalid([FieldError("spec", str(error))])
        old = None if request.operation is Operation.CREATE else try_decode(request.old_object, EgressGatewayPolicy)
        if faults := validate_change(old, new):
            return Invalid(faults)
        try:
            return await self._compare(request, old, new)
        except UnknownStateError as error:
            return Unavailable(str(error))

    async def _compare(
        self, request: AdmissionRequest, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy
    ) -> Verdict:
        """With other objects. Raises UnknownStateError."""
        faults = await self._check_right(request, old, new)
        faults += await self._check_usage(request.namespace, old, new)
        warnings: list[str] = []
        match await self._choose_gateway(request.namespace, new) if old is None else None:
            case EgressGateway() as gateway:
                faults += await self._check_address(request.namespace, new, gateway)
            case NoGateway(ChoiceReason.NOT_ALLOWED, message):
                faults.append(FieldError("spec.egressGatewayName", message))
            case NoGateway(_, message):
                # Manifests may be applied in any order, a policy before its gateway.
                warnings.append(f"{message}; the policy waits")
        return Invalid(faults) if faults else Allowed(warnings=warnings)

    async def _check_right(
        self, request: AdmissionRequest, old: EgressGatewayPolicy | None, policy: EgressGatewayPolicy
    ) -> list[FieldError]:
        faults = []
        right = f"which takes the right to {USE!r} {EGRESS_GATEWAY_POLICIES.plural}/{POD_SUBNET}"
        if policy.spec.applied_to.pod_subnet:
            message = f"selects pods of all namespaces, {right}: use a podSelector, or ask an administrator"
            faults.append(FieldError("spec.appliedTo.podSubnet", message))
        known = frozenset(old.spec.dest_subnet) if old is not None else frozenset[str]()
        if added := [text for text in policy.spec.dest_subnet if text not in known]:
            for text, owner in find_inner_destinations(added, await self._reader.taken()):
                position = policy.spec.dest_subnet.index(text)
                message = f"{text} belongs to {owner}, {right}: name addresses outside, or ask an administrator"
                faults.append(FieldError(f"spec.destSubnet[{position}]", message))
        if not faults:
            return []
        may = await self._reader.may(
            request.user_info,
            verb=USE,
            resource=EGRESS_GATEWAY_POLICIES.plural,
            subresource=POD_SUBNET,
            namespace=request.namespace,
        )
        return [] if may else faults

    async def _check_usage(
        self, namespace: str, old: EgressGatewayPolicy | None, policy: EgressGatewayPolicy
    ) -> list[FieldError]:
        if old is not None and count_networks(policy) <= count_networks(old):
            return []
        known = await self._reader.known_policies()
        return validate_usage(_in_namespace(policy, namespace), old, known, self._limits)

    async def _choose_gateway(self, namespace: str, policy: EgressGatewayPolicy) -> EgressGateway | NoGateway:
        found = await self._reader.namespace(namespace)
        labels = {} if found is None else found.metadata.labels
        names = _names(policy.spec, labels)
        gateways = {name: gateway for name in names if (gateway := await self._reader.gateway(name)) is not None}
        return choose_gateway(policy.spec, namespace_labels=labels, gateway=gateways.get)

    async def _check_address(
        self, namespace: str, policy: EgressGatewayPolicy, gateway: EgressGateway
    ) -> list[FieldError]:
        if gateway.metadata.deleting:
            return [FieldError("spec.egressGatewayName", f"the gateway {gateway.metadata.name!r} is being deleted")]
        asked = policy.spec.egress_ip
        if not asked.ipv4 and not asked.ipv6:
            return []
        if faults := validate_offered(policy, gateway):
            return faults
        return validate_untaken(_in_namespace(policy, namespace), await self._reader.known_policies())


def validate_change(old: EgressGatewayPolicy | None, new: EgressGatewayPolicy) -> list[FieldError]:
    """The rules that a change breaks, or with `old` None a creation, without a look at other objects."""
    if old is None:
        return validate_policy(new)
    changed = validate_policy_update(old, new)
    return [*changed, *select_new(validate_policy(new), validate_policy(old))]


def _in_namespace(policy: EgressGatewayPolicy, namespace: str) -> EgressGatewayPolicy:
    """A request's object need not say where it is."""
    return msgspec.structs.replace(policy, metadata=msgspec.structs.replace(policy.metadata, namespace=namespace))


def _names(spec: EgressGatewayPolicySpec, labels: Mapping[str, str]) -> list[str]:
    """The names that `choose_gateway` may look up."""
    if spec.egress_gateway_name:
        return [spec.egress_gateway_name]
    labelled = labels.get(LABEL_DEFAULT_GATEWAY, "")
    return [name for name in (labelled, DEFAULT_GATEWAY) if name]
