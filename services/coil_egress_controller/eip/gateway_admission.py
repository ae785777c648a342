"""Checks changes of EgressGateways before they are stored.

Every replica answers. A new gateway must keep every rule and share no address with another, nor have any of the
cluster's own (of Nodes, pods, Services and tunnels), nor the network or broadcast address of a network that nodes are
in. An update is refused only for rules that it breaks itself, so that
a gateway that was stored in violation of some can still be labelled, or repaired step by step. What policies depend on
cannot be removed: an address that one has, or the gateway of one.

Two gateways that are created at the same moment with the same addresses may both pass, as neither review sees the other
one, and so may a deletion beside a new policy: the controller checks again before it acts. A Node that comes later has
an address that the controller gives to no policy, and its agent takes no EIP that is its Node's.
"""

from collections.abc import Iterable, Mapping, Sequence

from coil.admission.review import (
    ALLOWED,
    AdmissionRequest,
    Allowed,
    Denied,
    Invalid,
    Operation,
    ReviewError,
    Unavailable,
    Verdict,
    decode_object,
)
from coil.admission.server import AdmissionHandler
from coil.crd.builtin import Namespace
from coil.crd.egress_gateway import EgressGateway, NodePolicy
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.eip_conflict import (
    is_offered,
    validate_disjoint_ranges,
    validate_kept,
    validate_only_default,
    validate_untaken_ranges,
)
from coil.crd.eip_validation import validate_gateway
from coil.crd.meta import ObjectMeta
from coil.crd.names import GATEWAY_FINALIZER_0_6
from coil.crd.resource import object_key
from coil.crd.subnet_end import validate_assignable_ranges
from coil.crd.validation import FieldError, render_names, select_new
from coil.eip.gateway_choice import choose_gateway
from coil_egress_controller.eip.admission_reader import AdmissionReader, UnknownStateError, changes_spec, try_decode

GATEWAY_PATH = "/validate-egressgateway-spidernet-io-v1beta1-egressgateway"


class GatewayAdmission:
    def __init__(self, reader: AdmissionReader) -> None:
        self._reader = reader

    @property
    def handlers(self) -> Mapping[str, AdmissionHandler]:
        return {GATEWAY_PATH: self.validate}

    async def validate(self, request: AdmissionRequest) -> Verdict:
        """Refuse violations of rules, with their fields, and the deletion of what is in use. Raises ReviewError."""
        try:
            match request.operation:
                case Operation.CREATE:
                    return await self._review(request, None)
                case Operation.UPDATE if changes_spec(request):
                    return await self._review(request, try_decode(request.old_object, EgressGateway))
                case Operation.DELETE:
                    return await self._review_deletion(request)
        except UnknownStateError as error:
            return Unavailable(str(error))
        return ALLOWED

    async def _review(self, request: AdmissionRequest, old: EgressGateway | None) -> Verdict:
        """`old` is None for a new one, and for one whose old state cannot be decoded."""
        try:
            new = decode_object(request.object, EgressGateway)
        except ReviewError as error:
            return Invalid([FieldError("spec", str(error))])
        faults = select_new(validate_gateway(new), [] if old is None else validate_gateway(old))
        if faults:
            return Invalid(faults)
        if new.spec.cluster_default and (old is None or not old.spec.cluster_default):
            faults = validate_only_default(new, await self._reader.gateways())
            if faults:
                return Invalid(faults)
        accepted = Allowed(warnings=_warn(new))
        if old is not None and (old.spec.ranges, old.spec.ippools) == (new.spec.ranges, new.spec.ippools):
            return accepted
        others, cluster = await self._reader.gateways(), await self._reader.cluster()
        taken, subnet_ends = cluster.taken(), cluster.subnet_ends()

        def find_conflicts(gateway: EgressGateway) -> list[FieldError]:
            return [
                *validate_disjoint_ranges(gateway, others),
                *validate_untaken_ranges(gateway, taken),
                *validate_assignable_ranges(gateway, subnet_ends),
            ]

        faults = select_new(find_conflicts(new), [] if old is None else find_conflicts(old))
        if old is not None:
            faults += validate_kept(old, new, await self._reader.policies())
        return Invalid(faults) if faults else accepted

    async def _review_deletion(self, request: AdmissionRequest) -> Verdict:
        before = try_decode(request.old_object, EgressGateway)
        gateway = before or EgressGateway(metadata=ObjectMeta(name=request.name))
        policies = await self._reader.policies()
        if not policies:
            return ALLOWED
        users = find_users(gateway, policies, await self._reader.gateways(), await self._reader.namespaces())
        if not users:
            return ALLOWED
        return Denied(f"the gateway is in use by the policies {render_names(users)}: delete them first")


def _warn(gateway: EgressGateway) -> list[str]:
    selector = gateway.spec.node_selector
    warnings = []
    if selector.policy not in {"", *NodePolicy}:
        warnings.append(f"spec.nodeSelector.policy {selector.policy!r} is unknown and counts as {NodePolicy.AVERAGE}")
    if strays := [entry.eip for entry in selector.preferred_nodes if not is_offered(gateway.spec, entry.eip)]:
        message = f"has {strays[0]}, which is not an address of the gateway"
        more = f", and {len(strays) - 1} more" if len(strays) > 1 else ""
        warnings.append(f"spec.nodeSelector.preferredNodes {message}{more}")
    if GATEWAY_FINALIZER_0_6 in gateway.metadata.finalizers:
        message = "which only egressgateway removes: the gateway cannot be deleted until you remove it"
        warnings.append(f"metadata.finalizers has {GATEWAY_FINALIZER_0_6}, {message}")
    return warnings


def find_users(
    gateway: EgressGateway,
    policies: Iterable[EgressGatewayPolicy],
    gateways: Iterable[EgressGateway],
    namespaces: Iterable[Namespace],
) -> Sequence[str]:
    """The keys of the policies that have an address or a node of the gateway, or would use it; sorted.

    A policy that names a gateway whose `allowedNamespaces` exclude it does not prevent the deletion.
    """
    by_name = {other.metadata.name: other for other in gateways} | {gateway.metadata.name: gateway}
    labels = {namespace.metadata.name: namespace.metadata.labels for namespace in namespaces}

    def uses(policy: EgressGatewayPolicy) -> bool:
        status = policy.status
        if status.egress_gateway_name == gateway.metadata.name and (status.node or status.eip.ipv4 or status.eip.ipv6):
            return True
        chosen = choose_gateway(
            policy.spec,
            namespace_labels=labels.get(policy.metadata.namespace, {}),
            gateway=by_name.get,
            gateways=by_name.values(),
        )
        return chosen is gateway

    return sorted(object_key(policy.metadata) for policy in policies if not policy.metadata.deleting and uses(policy))
