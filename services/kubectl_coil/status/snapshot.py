"""The objects that `kubectl coil status` looks at, read side by side. What cannot be read is told with the rest."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest
from coil.crd.builtin import EVENTS, Event
from coil.crd.egress import EGRESSES, Egress
from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_NAME
from coil.crd.resource import Resource
from coil.kube.errors import ApiError, ForbiddenError, NotFoundError, UnauthorizedError, UnavailableError
from coil.kube.lease_lock import LEASES, Lease
from kubectl_coil.cluster import Reader
from kubectl_coil.installation import COILD, find_homes
from kubectl_coil.status.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    NODES,
    DaemonSet,
    Deployment,
    NodeWithConditions,
    Workload,
)
from kubectl_coil.status.vitals import Access, Vitals, survey

ELECTIONS: Final = ("coil-ipam-controller", "coil-egress-controller", "coil-raven")
"""Programs of which one replica leads; each has a Lease of its name."""
REPORTERS: Final = (
    *(COILD, "coil-ipam-controller", "coil-egress-controller", "coil-egress-agent-node", "coil-raven"),
    *("coil-egress-agent", "coil-installer"),
)
"""Programs that write Events."""
_LABELS: Final = f"{LABEL_APP_NAME}={APP_NAME}"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """The objects of one kind. `items` is None if the cluster does not serve it, or if it could not be read; then
    `error` says why, and `forbidden` whether a right was missing.
    """

    what: str
    items: Sequence[T] | None = None
    error: str = ""
    forbidden: bool = False

    def known(self) -> Sequence[T]:
        """The objects, none where they are unknown."""
        return self.items or ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Read within a few seconds, so objects may contradict each other."""

    at: datetime
    programs: Part[Workload]
    """Deployments and DaemonSets of Coil's programs, in the order of their names."""
    routers: Part[Deployment]
    """The Deployments of Egresses."""
    leases: Part[Lease]
    nodes: Part[NodeWithConditions]
    pools: Part[AddressPool]
    blocks: Part[AddressBlock]
    requests: Part[BlockRequest]
    egresses: Part[Egress]
    gateways: Part[EgressGateway]
    policies: Part[EgressGatewayPolicy]
    events: Part[Event]
    vitals: Part[Vitals]

    def parts(self) -> Iterable[Part[Any]]:
        return (
            *(self.programs, self.routers, self.leases, self.nodes, self.pools, self.blocks, self.requests),
            *(self.egresses, self.gateways, self.policies, self.events, self.vitals),
        )


async def read_snapshot(cluster: Access) -> Snapshot:
    """Raises ApiError if the API server does not answer, refuses every list (429, 5xx), or does not know who asks."""
    reading = _Reading()

    async def read(resource: Resource[Any], *, labels: str = "", fields: str = "") -> Part[Any]:
        return await reading.read(resource.plural, cluster.list(resource, labels=labels, fields=fields))

    try:
        async with asyncio.TaskGroup() as group:
            deployments = group.create_task(read(DEPLOYMENTS, labels=_LABELS))
            daemons = group.create_task(read(DAEMON_SETS, labels=_LABELS))
            homes = group.create_task(reading.read("clusterrolebindings", find_homes(cluster)))
            nodes, pools, blocks, requests, egresses, gateways, policies = (
                group.create_task(read(resource))
                for resource in (
                    *(NODES, ADDRESS_POOLS, ADDRESS_BLOCKS, BLOCK_REQUESTS),
                    *(EGRESSES, EGRESS_GATEWAYS, EGRESS_GATEWAY_POLICIES),
                )
            )
            events = [
                group.create_task(read(EVENTS, fields=f"type=Warning,reportingComponent={name}")) for name in REPORTERS
            ]
            await asyncio.wait((deployments, daemons, homes, nodes))
            programs, routers = _divide(deployments.result(), daemons.result(), homes=homes.result())
            leases = group.create_task(reading.read("leases", _read_leases(cluster, programs.known())))
            names = sorted(node.metadata.name for node in nodes.result().known() if not node.silent)
            asking = survey(cluster, homes=homes.result().known(), nodes=names, now=cluster.now())
            vitals = group.create_task(reading.read("pods of programs", asking))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    if reading.refusal is not None and not reading.objects:
        raise reading.refusal
    return Snapshot(
        at=cluster.now(),
        programs=programs,
        routers=routers,
        leases=leases.result(),
        nodes=nodes.result(),
        pools=pools.result(),
        blocks=blocks.result(),
        requests=requests.result(),
        egresses=egresses.result(),
        gateways=gateways.result(),
        policies=policies.result(),
        events=_join("events", [task.result() for task in events]),
        vitals=vitals.result(),
    )


@dataclass(slots=True)
class _Reading:
    """What all lists so far have brought: objects, and the last refusal of a server that is overloaded or not ready."""

    objects: int = 0
    refusal: UnavailableError | None = None

    async def read(self, what: str, listing: Coroutine[Any, Any, Sequence[T]]) -> Part[T]:
        try:
            items = await listing
        except UnauthorizedError:
            raise
        except ApiError as error:
            if not error.status:
                raise
            # The path of a kind that is not served is answered without a Status document.
            if error.status == HTTPStatus.NOT_FOUND:
                return Part(what)
            if isinstance(error, UnavailableError):
                self.refusal = error
            return Part(what, error=error.message, forbidden=isinstance(error, ForbiddenError))
        self.objects += len(items)
        return Part(what, items)


async def _read_leases(cluster: Reader, programs: Sequence[Workload]) -> list[Lease]:
    found = []
    for workload in programs:
        if workload.metadata.name in ELECTIONS:
            try:
                found.append(await cluster.get(LEASES, workload.metadata.name, namespace=workload.metadata.namespace))
            except NotFoundError:
                continue
    return found


def _divide(
    deployments: Part[Deployment], daemons: Part[DaemonSet], *, homes: Part[str]
) -> tuple[Part[Workload], Part[Deployment]]:
    """Coil's own programs, and the routers of Egresses: their Deployments carry the same label."""
    routers: list[Deployment] = []
    programs: list[Workload] = [*daemons.known()]
    for workload in deployments.known():
        if workload.metadata.labels.get(LABEL_APP_COMPONENT) == COMPONENT_EGRESS:
            routers.append(workload)
        else:
            programs.append(workload)
    programs = [program for program in programs if program.metadata.namespace in homes.known()]
    programs.sort(key=lambda workload: workload.metadata.name)
    what = "deployments and daemonsets"
    for part in (deployments, daemons, homes):
        if part.error:
            return Part(what, error=part.error, forbidden=part.forbidden), Part("deployments")
    return Part(what, programs), Part("deployments", routers)


def _join(what: str, parts: Iterable[Part[T]]) -> Part[T]:
    """What several lists of one kind have found; unknown if one of them is."""
    found: list[T] = []
    for part in parts:
        if part.error:
            return part
        found += part.known()
    return Part(what, found)
