"""Gives each namespace its network, and takes it away with the namespace.

A finalizer keeps the Namespace until its network is gone: else one that is deleted while coil-raven is down would leave
its network behind. What is left all the same, as somebody has removed the finalizer, is looked for from time to time.
Pods have no finalizer; a pod's end never waits for Neutron.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import NAMESPACES, Namespace, Pod
from coil.crd.meta import plan_add_finalizer, plan_remove_finalizer
from coil.crd.names import NEUTRON_FINALIZER
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError
from coil.manager.term import Channel, Term
from coil.neutron.handoff import ANNOTATION_PROJECT
from coil.neutron.resource import NetworkId, ProjectId
from coil.neutron.supernet import SupernetExhaustedError
from coil.openstack.error import DeniedError, InvalidError, OpenStackError, QuotaError, ThrottledError
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil_raven.caches import BY_NAMESPACE, BY_UID, wants_port
from coil_raven.namespace_network import NamespaceNetwork, NamespaceNetworks
from coil_raven.network_removal import ForeignPortError
from coil_raven.owned import InvisibleError

WORKERS = 4
PODS_WAIT = 2.0
"""Seconds to the next look at a namespace that is being deleted and has pods."""
SLOW_RETRY = 60.0
"""Seconds to the next try where only people can change something."""
_FOR_PEOPLE = (QuotaError, DeniedError, InvalidError, SupernetExhaustedError, InvisibleError)


@dataclass(slots=True)
class Networks:
    """Those that are whole, by the name of their namespace. Of one term.

    `ready` tells of each as it becomes so.
    """

    present: dict[str, NamespaceNetwork] = field(default_factory=dict)
    ready: Channel[NamespaceNetwork] = field(default_factory=Channel)

    def add(self, network: NamespaceNetwork) -> None:
        self.present[network.namespace] = network
        self.ready.send(network)

    def by_id(self, network: NetworkId) -> NamespaceNetwork | None:
        """The one whose network has that ID."""
        return next((each for each in self.present.values() if each.network.id == network), None)

    def forget(self, uid: str) -> None:
        """No pod gets a port any more on the network of the namespace with that UID."""
        for network in [each for each in self.present.values() if each.uid == uid]:
            del self.present[network.namespace]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceReconciler:
    """The keys are UIDs of namespaces, so that a namespace and the next one of its name are never mixed up.

    `namespaces` and `pods` have their indexers of `coil_raven.caches`. `project` is that of namespaces without the
    annotation. `resync` is how often networks without a namespace are looked for, in seconds.
    """

    client: ApiClient
    namespaces: Cache[Namespace]
    pods: Cache[Pod]
    maker: NamespaceNetworks
    networks: Networks
    project: ProjectId
    resync: float
    recorder: Recorder
    log: FilteringBoundLogger

    def setup(self, term: Term) -> None:
        controller = term.controller(
            "namespace", self.reconcile, workers=WORKERS, expected_errors=(OpenStackError, ForeignPortError)
        )
        controller.watch(self.namespaces, _changed)
        controller.needs(self.pods)
        controller.resync(self.orphans, every=self.resync, at_start=True)
        controller.resync(self.rule_changes, every=self.resync)

    async def reconcile(self, uid: str) -> Result:
        """Bring the network of the namespace with that UID in line with it."""
        namespace = next(iter(self.namespaces.by_index(BY_UID, uid)), None)
        if namespace is None:
            self.networks.forget(uid)
            await self.maker.remove(uid)
            return DONE
        try:
            return await (self._remove(namespace) if namespace.metadata.deleting else self._ensure(namespace))
        except NotFoundError:
            self.log.debug("namespace was deleted in the meantime", namespace=namespace.metadata.name)
            return DONE

    async def orphans(self) -> AsyncIterator[str]:
        """UIDs that have something in Neutron and no namespace.

        The cache may lag behind a former leader's, so the API server has the last word.
        """
        try:
            candidates = {uid for uid in await self.maker.uids() if not self.namespaces.by_index(BY_UID, uid)}
            if not candidates:
                return
            present = {namespace.metadata.uid for namespace in await self.client.list(NAMESPACES)}
        except (ApiError, OpenStackError) as error:
            self.log.warning("networks without a namespace were not looked for", error=str(error))
            return
        for uid in candidates - present:
            self.log.warning("network without a namespace", uid=uid)
            yield uid

    async def rule_changes(self) -> AsyncIterator[str]:
        """UIDs whose security groups somebody has changed; the pods in them are reconciled, so that nodes are told."""
        try:
            changed = await self.maker.changed_rules(self.networks.present.values())
        except OpenStackError as error:
            self.log.warning("security groups were not looked at", error=str(error))
            return
        for network in changed:
            # It may have been forgotten while Neutron answered.
            if (present := self.networks.present.get(network.namespace)) is not None and present.uid == network.uid:
                self.log.info("security group has changed", namespace=network.namespace, group=network.group)
                self.networks.add(network)
                self._tell_left_out(network)
                yield network.uid

    def _tell_left_out(self, network: NamespaceNetwork) -> None:
        namespace = next(iter(self.namespaces.by_index(BY_UID, network.uid)), None)
        if network.left_out and namespace is not None:
            sentences = "; ".join(network.left_out)
            self._warn(
                namespace,
                "RulesLeftOut",
                f"its security group {network.group} has rules that nodes cannot enforce, and that admit nothing: "
                f"{sentences}",
            )

    async def _ensure(self, namespace: Namespace) -> Result:
        name = namespace.metadata.name
        project = ProjectId(namespace.metadata.annotations.get(ANNOTATION_PROJECT) or self.project)
        present = self.networks.present.get(name)
        if present is not None and present.uid == namespace.metadata.uid:
            if present.project != project:
                self._warn(
                    namespace,
                    "ProjectNotChanged",
                    f"its network is in the project {present.project!r} and stays there: a network cannot be moved. "
                    "Create another namespace",
                )
            return DONE
        if (patch := plan_add_finalizer(namespace.metadata, NEUTRON_FINALIZER)) is not None:
            await self.client.patch(NAMESPACES, name, patch)
        try:
            network = await self.maker.ensure(name, namespace.metadata.uid, project)
        except (*_FOR_PEOPLE, ThrottledError) as error:
            self._warn(namespace, "NoNetwork", f"its pods get no ports: {error}")
            if isinstance(error, ThrottledError):
                raise
            self.log.warning("namespace has no network", namespace=name, error=str(error))
            return RequeueAfter(SLOW_RETRY)
        self.networks.add(network)
        self._tell_left_out(network)
        cidrs = ", ".join(subnet.cidr for subnet in network.subnets)
        self.log.info("namespace has a network", namespace=name, network=network.network.id, cidrs=cidrs)
        return DONE

    async def _remove(self, namespace: Namespace) -> Result:
        patch = plan_remove_finalizer(namespace.metadata, NEUTRON_FINALIZER)
        self.networks.forget(namespace.metadata.uid)
        if patch is None:
            return DONE
        if any(wants_port(pod) for pod in self.pods.by_index(BY_NAMESPACE, namespace.metadata.name)):
            # They use their ports until they have ended.
            return RequeueAfter(PODS_WAIT)
        try:
            await self.maker.remove(namespace.metadata.uid)
        except ForeignPortError as error:
            self._warn(namespace, "NetworkInUse", f"its network cannot be deleted: {error}. Delete them, or move them")
            return RequeueAfter(SLOW_RETRY)
        await self.client.patch(NAMESPACES, namespace.metadata.name, patch)
        self.log.info("network of a namespace deleted", namespace=namespace.metadata.name)
        return DONE

    def _warn(self, namespace: Namespace, reason: str, message: str) -> None:
        self.recorder.warn(EventSubject.of(NAMESPACES, namespace.metadata), reason=reason, message=message)


def _changed(old: Namespace | None, new: Namespace | None) -> Iterable[str]:
    """The namespaces of this change: one that is new, was annotated, is being deleted, or is gone."""
    before, after = _relevant(old), _relevant(new)
    if before != after:
        yield from {state[0]: None for state in (before, after) if state is not None}


def _relevant(namespace: Namespace | None) -> tuple[str, bool, str] | None:
    if namespace is None:
        return None
    metadata = namespace.metadata
    return metadata.uid, metadata.deleting, metadata.annotations.get(ANNOTATION_PROJECT, "")
