"""EgressGateway: which nodes may carry floating egress addresses (EIPs), and which addresses these are.

Strings stay strings here, so that one with nonsense in it can still be decoded, listed and reported.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from coil.crd.cidr import Version
from coil.crd.meta import Condition, LabelSelector, ObjectMeta, Struct
from coil.crd.names import EIP_GROUP, EIP_VERSION, SHARE_LIMIT
from coil.crd.resource import Resource


class NodePolicy(StrEnum):
    """How the node of a policy is chosen."""

    AVERAGE = "AverageSelection"
    AVERAGE_AS_PROPOSED = "AverageSelecton"
    """The proposal's spelling of it."""
    MINIMUM = "MinimumNodes"
    LIMIT = "Limit"


class AddressPolicy(StrEnum):
    """How the address of a policy is chosen that asks for none in particular."""

    RANDOM = "Random"
    PREFER_UNUSED = "PreferUnused"
    LIMIT = "Limit"


class Sharing(StrEnum):
    """Whose policies may have the same address."""

    NAMESPACE = "Namespace"
    """Those of one namespace."""
    ANY = "Any"


class FailPolicy(StrEnum):
    """What becomes of policy traffic while no node can carry it."""

    CLOSED = "Closed"
    OPEN = "Open"
    """It leaves from its own node."""


class Ranges(Struct, frozen=True, kw_only=True):
    """Each text is an address, `first-last`, or a network. `limit` counts with the policy Limit."""

    policy: str = AddressPolicy.RANDOM
    limit: int = SHARE_LIMIT
    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()


class IpPools(Struct, frozen=True, kw_only=True):
    """Addresses as egressgateway 0.6 has them, beside those of `ranges`. The default EIP, a pair where there are both
    families, is the address of policies whose allocatorPolicy is `default`; "" means the first of the family.
    """

    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    # The struct's camel case would ask for "ipv4DefaultEip".
    ipv4_default_eip: str = msgspec.field(name="ipv4DefaultEIP", default="")
    ipv6_default_eip: str = msgspec.field(name="ipv6DefaultEIP", default="")


class PreferredNode(Struct, frozen=True, kw_only=True):
    """The node that an address, with its partner, is to be on while that one can carry it."""

    eip: str
    node: str


class NodeSelector(Struct, frozen=True, kw_only=True):
    """`limit` counts with the policy Limit; `preferred_nodes` come before the policy."""

    selector: LabelSelector = LabelSelector()
    policy: str = NodePolicy.AVERAGE
    limit: int = SHARE_LIMIT
    preferred_nodes: tuple[PreferredNode, ...] = ()


class EgressGatewaySpec(Struct, frozen=True, kw_only=True):
    """`allowed_namespaces` selects by the namespaces' labels; None allows all. `unserved_family` is a FailPolicy, of
    traffic of a family of which a policy has no address; "" for that of `fail_policy`. `cluster_default`: it serves
    policies that name no gateway, where the namespace names none, either. `sharing` is a Sharing, "" for `Any` of a
    gateway with `ippools`, whose default EIP is everybody's, and else for `Namespace`.
    """

    cluster_default: bool = False
    ranges: Ranges = Ranges()
    ippools: IpPools = IpPools()
    sharing: str = ""
    node_selector: NodeSelector = NodeSelector()
    allowed_namespaces: LabelSelector | None = None
    fail_policy: str = FailPolicy.CLOSED
    unserved_family: str = ""

    def offers(self, version: Version) -> Iterator[tuple[str, str]]:
        """The addresses of a family, as they are written, each with the path of its field."""
        for field, written in (("ranges", self.ranges), ("ippools", self.ippools)):
            for position, text in enumerate(written.ipv4 if version == 4 else written.ipv6):
                yield f"spec.{field}.ipv{version}[{position}]", text

    @property
    def is_shared(self) -> bool:
        """Whether policies of several namespaces may have the same address."""
        if self.sharing:
            return self.sharing == Sharing.ANY
        return bool(self.ippools.ipv4 or self.ippools.ipv6)

    @property
    def is_strict(self) -> bool:
        """Whether traffic of a family of which a policy has no address is dropped."""
        return (self.unserved_family or self.fail_policy) != FailPolicy.OPEN


class PolicyRef(Struct, frozen=True, kw_only=True, order=True):
    """`namespace` is empty where egressgateway has written it of an EgressClusterPolicy."""

    namespace: str = ""
    name: str


class EipEntry(Struct, frozen=True, kw_only=True):
    """An address, or a pair of both families, on a node. Without any it stands for the node's own (useNodeIP).

    `leaving` is the revision of the status in which it was decided that the address leaves the node; 0: it stays. The
    address is nobody else's until the node's agent has applied that revision, or lost its lease.
    """

    ipv4: str = ""
    ipv6: str = ""
    policies: tuple[PolicyRef, ...] = ()
    leaving: int = 0


class GatewayNode(Struct, frozen=True, kw_only=True):
    """A node that the selector selects. `status` is a `TunnelPhase`.

    `term` is the term of the node's lease for which `eips` were decided: an agent whose lease has another one takes
    none of them.
    """

    name: str
    status: str = ""
    term: int = 0
    eips: tuple[EipEntry, ...] = ()


class AddressUsage(Struct, frozen=True, kw_only=True):
    ipv4_total: int = 0
    ipv4_free: int = 0
    ipv6_total: int = 0
    ipv6_free: int = 0


class PolicyUsage(Struct, frozen=True, kw_only=True):
    """How many policies the gateway serves, and how many it may."""

    served: int = 0
    limit: int = 0


class EgressGatewayStatus(Struct, frozen=True, kw_only=True):
    """`revision` counts the changes of `node_list`. IPv6 counts end at 2^63 - 1."""

    observed_generation: int = 0
    revision: int = 0
    node_list: tuple[GatewayNode, ...] = ()
    ip_usage: AddressUsage = AddressUsage()
    policy_usage: PolicyUsage = PolicyUsage()
    conditions: tuple[Condition, ...] = ()


class EgressGateway(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: EgressGatewaySpec = EgressGatewaySpec()
    status: EgressGatewayStatus = EgressGatewayStatus()


EGRESS_GATEWAYS: Resource[EgressGateway] = Resource(
    EIP_GROUP, EIP_VERSION, "egressgateways", "EgressGateway", namespaced=False, type=EgressGateway
)
