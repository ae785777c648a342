"""What a namespace has in Neutron, and how it comes to be: a network, a subnet of each family with an interface of the
router, and a security group.

Everything is found by its identity before it is created, so a process that died in the middle, or lost an answer, goes
on where it was.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.kernel.family import Family, IPNetwork
from coil.neutron.identity import ClusterId, Identity, Kind, describe, parse_identity
from coil.neutron.port_rules import RuleSet, admits_everything, resolve_rules
from coil.neutron.resource import (
    Network,
    ProjectId,
    Resource,
    SecurityGroup,
    SecurityGroupId,
    SecurityGroupRule,
    Subnet,
)
from coil.neutron.supernet import Supernet
from coil.openstack.error import InUseError, InvalidError, OpenStackError
from coil.openstack.neutron import Neutron, own
from coil_raven.cluster_router import ClusterRouter
from coil_raven.namespace_group import GroupPolicy, group_rules, is_stale
from coil_raven.network_removal import ForeignPortError, remove_network
from coil_raven.owned import OwnedObjects

SUBNET_KINDS: Final = {4: Kind.SUBNET_IPV4, 6: Kind.SUBNET_IPV6}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceNetwork:
    """As it is in Neutron, whole. `uid` is the namespace's.

    `rules` are those of its security group, where its pods' nodes have to enforce them and not everything passes.
    `left_out` has a sentence for each rule that they cannot enforce.
    """

    namespace: str
    uid: str
    project: ProjectId
    network: Network
    subnets: tuple[Subnet, ...]
    group: SecurityGroupId
    rules: RuleSet | None = None
    left_out: tuple[str, ...] = ()


class NamespaceNetworks:
    """Makes and deletes them. One for each term; `router` connects them.

    Calls for different namespaces may be under way at the same time, but not for the same.
    """

    def __init__(
        self,
        neutron: Neutron,
        *,
        cluster: ClusterId,
        router: ClusterRouter,
        supernets: Sequence[Supernet],
        policy: GroupPolicy,
        owned: OwnedObjects,
        log: FilteringBoundLogger,
    ) -> None:
        self._neutron = neutron
        self._cluster = cluster
        self._router = router
        self._supernets = tuple(supernets)
        self._policy = policy
        self._owned = owned
        self._log = log
        self._members: dict[SecurityGroupId, tuple[IPNetwork, ...]] = {}
        self._chosen: dict[tuple[str, int], IPv4Network | IPv6Network] = {}

    async def ensure(self, namespace: str, uid: str, project: ProjectId) -> NamespaceNetwork:
        """Have it, whole. Idempotent.

        Raises OpenStackError, SupernetExhaustedError or InvisibleError; what was made until then is found next time.
        """
        description = describe("Namespace", "", namespace)
        name = self._name(Kind.NETWORK, uid)
        network = await self._owned.have(
            name,
            "networks",
            lambda: self._neutron.networks(name=name),
            lambda: self._neutron.create_network(name=name, description=description, project=project),
            self._neutron.delete_network,
        )
        group = await self._ensure_group(uid, description, project)
        subnets = [
            await self._ensure_subnet(supernet, uid, description, project, network) for supernet in self._supernets
        ]
        self._members[group.id] = tuple(subnet.network for subnet in subnets)
        made = NamespaceNetwork(
            namespace=namespace, uid=uid, project=project, network=network, subnets=tuple(subnets), group=group.id
        )
        return await self._with_rules(made, group.security_group_rules)

    async def changed_rules(self, networks: Collection[NamespaceNetwork]) -> list[NamespaceNetwork]:
        """Those of the networks whose security groups have other rules by now, with these. One call for all; none
        where nodes do not enforce them. Raises OpenStackError.
        """
        if not self._policy.enforced_by_nodes or not networks:
            return []
        rules = {group.id: group.security_group_rules for group in await self._neutron.security_groups()}
        changed: list[NamespaceNetwork] = []
        for network in networks:
            if network.group in rules:
                looked = await self._with_rules(network, rules[network.group])
                changed += [looked] if looked != network else []
        return changed

    async def _with_rules(self, network: NamespaceNetwork, rules: Sequence[SecurityGroupRule]) -> NamespaceNetwork:
        if not self._policy.enforced_by_nodes:
            return network
        await self._find_members({rule.remote_group_id for rule in rules if rule.remote_group_id is not None})
        resolved = resolve_rules(rules, self._members)
        families = {Family.of(subnet.network) for subnet in network.subnets}
        passes = admits_everything(resolved.rules, families)
        return replace(network, rules=None if passes else resolved.rules, left_out=resolved.left_out)

    async def _find_members(self, groups: Collection[SecurityGroupId]) -> None:
        """Find out where the members of these groups are, as far as they are those of namespaces.

        Not only from what was ensured before: the namespaces come in any order after a start, and a rule that was left
        out until the next look would cut off pods that it admits.
        """
        if not (unknown := set(groups) - self._members.keys()):
            return
        for group in await self._neutron.security_groups():
            identity = parse_identity(group.name)
            if group.id not in unknown or identity is None or identity.cluster != self._cluster:
                continue
            names = {self._name(kind, identity.uid) for kind in SUBNET_KINDS.values()}
            found = [subnet for name in names for subnet in own(await self._neutron.subnets(name=name), name)]
            self._members[group.id] = tuple(subnet.network for subnet in found)

    def chosen(self) -> list[IPNetwork]:
        """What namespaces have of the supernets, or are about to get, as far as this term knows."""
        return list(self._chosen.values())

    async def uids(self) -> frozenset[str]:
        """The UIDs of the namespaces that have something. Raises OpenStackError."""
        found: list[Resource] = [*await self._neutron.networks(), *await self._neutron.security_groups()]
        identities = (parse_identity(resource.name) for resource in found)
        return frozenset(
            identity.uid
            for identity in identities
            if identity is not None
            and identity.cluster == self._cluster
            and identity.kind in (Kind.NETWORK, Kind.SECURITY_GROUP)
        )

    async def remove(self, uid: str) -> None:
        """Delete what the namespace with that UID has, ports of its pods included. Idempotent.

        Raises OpenStackError, or ForeignPortError: then all is gone but the network with that port, its subnets and
        their interfaces.
        """
        foreign: ForeignPortError | None = None
        name = self._name(Kind.NETWORK, uid)
        for network in own(await self._neutron.networks(name=name), name):
            try:
                await remove_network(
                    self._neutron, network, routers=await self._router.find(), is_own=self._owned.is_own
                )
            except ForeignPortError as error:
                foreign = error
        name = self._name(Kind.SECURITY_GROUP, uid)
        for group in own(await self._neutron.security_groups(name=name), name):
            try:
                await self._neutron.delete_security_group(group.id)
            except InUseError:
                # By the foreign port, which was given the group by whoever made it.
                if foreign is None:
                    raise
            self._members.pop(group.id, None)
        for version in SUBNET_KINDS:
            self._chosen.pop((uid, version), None)
        if foreign is not None:
            raise foreign

    async def _ensure_group(self, uid: str, description: str, project: ProjectId) -> SecurityGroup:
        name = self._name(Kind.SECURITY_GROUP, uid)
        group = await self._owned.have(
            name,
            "security-groups",
            lambda: self._neutron.security_groups(name=name),
            lambda: self._neutron.create_security_group(name=name, description=description, project=project),
            self._neutron.delete_security_group,
        )
        versions = {supernet.network.version for supernet in self._supernets}
        wanted = {rule.allows(): rule for rule in group_rules(group.id, versions, self._policy)}
        found = {rule.allows(): rule for rule in group.security_group_rules}
        missing = [wanted[key] for key in wanted if key not in found]
        await self._neutron.create_security_group_rules(group.id, missing, project=project)
        kept: list[SecurityGroupRule] = []
        for rule in found.values():
            if is_stale(rule, group.id, wanted):
                await self._neutron.delete_security_group_rule(rule.id)
            else:
                kept.append(rule)
        return msgspec.structs.replace(group, security_group_rules=(*kept, *missing))

    async def _ensure_subnet(
        self, supernet: Supernet, uid: str, description: str, project: ProjectId, network: Network
    ) -> Subnet:
        version = supernet.network.version
        name = self._name(SUBNET_KINDS[version], uid)

        async def create() -> Subnet:
            cidr = await self._choose(supernet, uid)
            return await self._neutron.create_subnet(
                name=name,
                description=description,
                project=project,
                network=network.id,
                cidr=cidr,
                gateway=cidr[1],
            )

        try:
            subnet = await self._owned.have(
                name,
                "subnets",
                lambda: self._neutron.subnets(network=network.id, name=name),
                create,
                self._neutron.delete_subnet,
            )
            self._chosen[uid, version] = subnet.network
            await self._connect(subnet)
        except OpenStackError:
            self._chosen.pop((uid, version), None)
            raise
        return subnet

    async def _connect(self, subnet: Subnet) -> None:
        """Give the router an interface on the subnet, unless it has one.

        If the router refuses, as another of its subnets has the same addresses by now, the subnet is deleted: nothing
        has been on it. The next try chooses others.
        """
        try:
            await self._router.connect(subnet)
        except InvalidError as error:
            self._log.warning("subnet deleted, as the router refuses it", cidr=subnet.cidr, error=str(error))
            await self._neutron.delete_subnet(subnet.id)
            raise

    async def _choose(self, supernet: Supernet, uid: str) -> IPv4Network | IPv6Network:
        """A part of the supernet that nothing has, neither in Neutron nor by a choice that is not in Neutron yet.

        From here to the note of the choice nothing else runs, so two namespaces never choose the same.
        """
        connected = await self._router.connected()
        # An account with more rights sees other projects' subnets, too, which may have the same addresses.
        taken: list[IPNetwork] = [
            subnet.network
            for subnet in await self._neutron.subnets()
            if subnet.id in connected or self._owned.is_own(subnet.name)
        ]
        chosen = supernet.choose([*taken, *self._chosen.values()])
        self._chosen[uid, supernet.network.version] = chosen
        return chosen

    def _name(self, kind: Kind, uid: str) -> str:
        return Identity(self._cluster, kind, uid).name
