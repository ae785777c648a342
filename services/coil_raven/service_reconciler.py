"""Gives each Service with a cluster IP its load balancers in Octavia, and a floating IP where it asks for one.

A finalizer keeps the Service until they are gone. What is left of a Service that went without it (somebody took the
finalizer away) is found by its UID when a term begins, and from time to time.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import SERVICES, Service
from coil.crd.endpoint_slice import EndpointSlice
from coil.crd.meta import plan_add_finalizer, plan_remove_finalizer
from coil.crd.names import NEUTRON_FINALIZER
from coil.crd.resource import object_key
from coil.kernel.family import IPNetwork
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, InvalidError, NotFoundError
from coil.manager.term import Term
from coil.neutron.provider import Provider
from coil.neutron.resource import PortId, ProjectId
from coil.neutron.service_plan import Remark, ServicePlan, is_status_ours, plan_service, wants_balancer
from coil.openstack import error as openstack
from coil.openstack.error import OpenStackError
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil_raven.balancers import LOOK, Balancers, Progress, ServiceName
from coil_raven.floating_ips import FloatingIps, ForeignAddressError, Sighting
from coil_raven.owned import InvisibleError
from coil_raven.service_cache import BY_SERVICE, BY_UID, service_key
from coil_raven.vip_subnets import VipSubnetError, VipSubnets

WORKERS = 4
SLOW_RETRY = 60.0
"""Seconds to the next try where only people can change something."""
_REFUSALS = (
    openstack.QuotaError,
    openstack.ExhaustedError,
    openstack.DeniedError,
    openstack.InvalidError,
    openstack.UnsupportedError,
    openstack.ExistsError,
    InvisibleError,
    VipSubnetError,
)


@dataclass(frozen=True, slots=True)
class _Exposure:
    """A floating IP that is known to be bound. `wanted` is what the Service asked for."""

    port: PortId
    wanted: str
    address: str


@dataclass(slots=True, kw_only=True)
class ServiceReconciler:
    """The keys are UIDs of Services. `services` and `slices` have the indexers of `service_cache`.

    `inside` are the networks of the cluster's own clients. `resync` is how often Octavia is compared with the Services,
    in seconds.
    """

    client: ApiClient
    services: Cache[Service]
    slices: Cache[EndpointSlice]
    balancers: Balancers
    floating_ips: FloatingIps
    vips: VipSubnets
    provider: Provider
    balancer_class: str
    inside: Sequence[IPNetwork]
    project: ProjectId
    resync: float
    recorder: Recorder
    log: FilteringBoundLogger
    _exposed: dict[str, _Exposure] = field(default_factory=dict)
    _seen: Sighting | None = None

    def setup(self, term: Term) -> None:
        controller = term.controller(
            "service", self.reconcile, workers=WORKERS, expected_errors=(OpenStackError, *_REFUSALS)
        )
        controller.watch(self.services, _changed)
        controller.watch(self.slices, self._of_slice)
        controller.resync(self._all, every=self.resync, at_start=True)

    async def reconcile(self, uid: str) -> Result:
        """Bring what the Service with that UID has in OpenStack in line with it."""
        service = next(iter(self.services.by_index(BY_UID, uid)), None)
        if service is None:
            return DONE if await self._withdraw(uid) else self._soon()
        try:
            if service.metadata.deleting or not wants_balancer(service):
                return await self._finish(service)
            return await self._ensure(service)
        except _REFUSALS as error:
            self._warn(service, Remark("NoLoadBalancer", f"it does not answer as it should: {error}"))
            self.log.warning("service lacks its load balancer", service=object_key(service.metadata), error=str(error))
            return RequeueAfter(SLOW_RETRY)
        except (NotFoundError, InvalidError) as error:
            # Deleted, or replaced by another one of its name: the event is on its way.
            self.log.debug(
                "service has changed in the meantime", service=object_key(service.metadata), error=str(error)
            )
            return DONE

    def exposed(self) -> dict[str, str]:
        """The floating IPs by the UIDs of their Services, as far as this term knows. A copy."""
        return {uid: exposure.address for uid, exposure in self._exposed.items()}

    async def _ensure(self, service: Service) -> Result:
        metadata = service.metadata
        if (patch := plan_add_finalizer(metadata, NEUTRON_FINALIZER)) is not None:
            await self.client.patch(SERVICES, metadata.name, patch, namespace=metadata.namespace)
        plan = plan_service(
            service,
            self.slices.by_index(BY_SERVICE, object_key(service.metadata)),
            self.provider,
            balancer_class=self.balancer_class,
            inside=self.inside,
        )
        for remark in plan.remarks:
            self._warn(service, remark)
        progress = await self._advance(service, plan)
        if not await self.balancers.remove(metadata.uid, keep=progress):
            return self._soon()
        waits = [each.wait for each in progress.values() if each.wait is not None]
        if waits:
            return RequeueAfter(min(waits))
        return await self._expose(service, plan, progress)

    async def _advance(self, service: Service, plan: ServicePlan) -> dict[int, Progress]:
        """Each of its load balancers, by IP version."""
        name = ServiceName(service.metadata.namespace, service.metadata.name, service.metadata.uid)
        progress: dict[int, Progress] = {}
        for each in plan.balancers:
            subnet = await self.vips.get(each.vip)
            made = await self.balancers.advance(name, each, self.project, subnet)
            progress[each.vip.version] = made
            if made.remark is not None:
                self._warn(service, made.remark)
        return progress

    async def _expose(self, service: Service, plan: ServicePlan, progress: dict[int, Progress]) -> Result:
        """Once all is as planned, so that nobody is let in before those are kept out who are to be."""
        uid = service.metadata.uid
        balancer = progress[4].balancer if 4 in progress else None
        port = None if balancer is None else balancer.vip_port_id
        if not plan.floating or port is None:
            if self._may_be_exposed(uid, port):
                await self.floating_ips.release(uid, port)
                self._exposed.pop(uid, None)
            if is_status_ours(service, self.balancer_class):
                await self._tell(service, "")
            return DONE
        known = self._exposed.get(uid)
        if known is None or (known.port, known.wanted) != (port, plan.wanted):
            name = ServiceName(service.metadata.namespace, service.metadata.name, uid)
            self._exposed.pop(uid, None)
            try:
                bound = await self.floating_ips.ensure(name, port, self.project, wanted=plan.wanted)
            except ForeignAddressError as error:
                await self._tell(service, "")
                self._warn(service, Remark("NoFloatingIP", f"it is not reached from outside: {error}"))
                return RequeueAfter(SLOW_RETRY)
            known = self._exposed[uid] = _Exposure(port, plan.wanted, bound.floating_ip_address)
        await self._tell(service, known.address)
        return DONE

    def _may_be_exposed(self, uid: str, port: PortId | None) -> bool:
        """Whether there may be a floating IP. The status does not tell: the API server empties it when the type of a
        Service changes.
        """
        return uid in self._exposed or self._seen is None or uid in self._seen.uids or port in self._seen.ports

    async def _finish(self, service: Service) -> Result:
        metadata = service.metadata
        if NEUTRON_FINALIZER not in metadata.finalizers:
            return DONE
        if not await self._withdraw(metadata.uid):
            return self._soon()
        if not metadata.deleting and is_status_ours(service, self.balancer_class):
            await self._tell(service, "")
        if (patch := plan_remove_finalizer(metadata, NEUTRON_FINALIZER)) is not None:
            await self.client.patch(SERVICES, metadata.name, patch, namespace=metadata.namespace)
        self.log.info("load balancers of a service deleted", service=object_key(service.metadata))
        return DONE

    async def _withdraw(self, uid: str) -> bool:
        """Delete everything of the Service; True once it is gone."""
        await self.floating_ips.release(uid, self.balancers.port_of(uid))
        self._exposed.pop(uid, None)
        return await self.balancers.remove(uid)

    async def _tell(self, service: Service, address: str) -> None:
        """Have the status say that the Service is reached at that address, or at none."""
        wanted = (address,) if address else ()
        if tuple(each.ip for each in service.status.load_balancer.ingress) == wanted:
            return
        ingress: list[dict[str, Any]] = [{"ip": address, "ipMode": "VIP"} for address in wanted]
        patch = {"metadata": {"uid": service.metadata.uid}, "status": {"loadBalancer": {"ingress": ingress or None}}}
        metadata = service.metadata
        await self.client.patch(SERVICES, metadata.name, patch, namespace=metadata.namespace, subresource="status")

    async def _all(self) -> AsyncIterator[str]:
        """All Services, compared with Octavia again; and the UIDs that have something in OpenStack and no Service."""
        self.balancers.look_again()
        self._exposed.clear()
        self._seen = None
        try:
            orphans = await self._orphans()
        except (ApiError, OpenStackError) as error:
            self.log.warning("load balancers without a service were not looked for", error=str(error))
            orphans = set()
        for service in self.services.items():
            yield service.metadata.uid
        for uid in orphans:
            yield uid

    async def _orphans(self) -> set[str]:
        """The cache may lag behind a former leader's, so the API server is asked. Raises ApiError or OpenStackError."""
        seen = self._seen = await self.floating_ips.look()
        having = await self.balancers.uids() | seen.uids
        orphans = {uid for uid in having if not self.services.by_index(BY_UID, uid)}
        if not orphans:
            return orphans
        return orphans - {each.metadata.uid for each in await self.client.list(SERVICES)}

    def _of_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> Iterable[str]:
        for key in {service_key(each) for each in (old, new) if each is not None}:
            if (service := self.services.get(key)) is not None:
                yield service.metadata.uid

    def _soon(self) -> Result:
        return RequeueAfter(LOOK.cap)

    def _warn(self, service: Service, remark: Remark) -> None:
        self.recorder.warn(EventSubject.of(SERVICES, service.metadata), reason=remark.reason, message=remark.message)


def _changed(old: Service | None, new: Service | None) -> Iterable[str]:
    """The Services of this change, if it is one that concerns them."""
    if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
        yield old.metadata.uid
    if new is not None and (old is None or _relevant(old) != _relevant(new)):
        yield new.metadata.uid


def _relevant(service: Service) -> tuple[object, ...]:
    metadata = service.metadata
    return metadata.uid, metadata.deleting, NEUTRON_FINALIZER in metadata.finalizers, service.spec, service.status
