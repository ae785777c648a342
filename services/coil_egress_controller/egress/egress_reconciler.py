"""Reconciles Egresses: a Deployment of router pods, the Service in front of them, the disruption budget, the status.

For each Egress: the ServiceAccount of its namespace, then the three objects, independently, so that the refusal of one
does not prevent the others; then the status, which the scale subresource and so autoscalers read. A deleted Egress
needs no work: its objects name it as their owner, and the garbage collector deletes them.

A template with rights that router pods may not have, which was stored past admission, is not carried out: it makes no
Deployment, and of one that is there, only the number of pods follows the Egress.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import (
    DEPLOYMENTS,
    POD_DISRUPTION_BUDGETS,
    SERVICES,
    ConfigMap,
    Deployment,
    PodDisruptionBudget,
    Service,
)
from coil.crd.egress import EGRESSES, Egress, EgressStatus
from coil.crd.egress_validation import validate_fields, validate_rights
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.crd.validation import render_errors
from coil.egress.cluster_networks import parse_cluster_networks
from coil.egress.router_objects import (
    Ownership,
    find_ownership,
    overlay_budget,
    overlay_deployment,
    overlay_replicas,
    overlay_service,
    render_budget,
    render_deployment,
    render_replicas,
    render_service,
)
from coil.egress.router_pod import RouterProgram, router_selector
from coil.kube.api_client import ApiClient
from coil.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NamespaceTerminatingError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil_egress_controller.egress.owned_object import NameTakenError, OwnedObjects
from coil_egress_controller.egress.router_account import RouterAccountReconciler

WORKERS = 4
TAKEN_SECONDS = 30.0
"""Until the next look at a name that is taken by a foreign object: no event says when it is free."""

_TRANSIENT = (AlreadyExistsError, ConflictError, UnauthorizedError, UnavailableError)
"""Errors that say nothing about the object itself; a retry is likely to succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCaches:
    """The objects of Egresses, which have the names of these, and the ConfigMap that tells the cluster's networks, if
    any does.
    """

    deployments: Cache[Deployment]
    services: Cache[Service]
    budgets: Cache[PodDisruptionBudget]
    cluster_networks: Cache[ConfigMap] | None = None


@dataclass(slots=True)
class _Failures:
    """Why objects of an Egress are not as wanted."""

    refusals: list[ApiError]
    names_taken: int = 0
    template_refused: bool = False


class EgressReconciler:
    """Of one term. The keys are those of Egresses."""

    def __init__(
        self,
        *,
        client: ApiClient,
        egresses: Cache[Egress],
        routers: RouterCaches,
        accounts: RouterAccountReconciler,
        recorder: Recorder,
        program: RouterProgram,
        privileged_templates: bool = False,
        log: FilteringBoundLogger,
    ) -> None:
        """`privileged_templates` is what admission goes by, too."""
        self._client = client
        self._egresses = egresses
        self._deployments = routers.deployments
        self._services = routers.services
        self._budgets = routers.budgets
        self._accounts = accounts
        self._recorder = recorder
        self._program = program
        self._cluster_networks = routers.cluster_networks
        self._privileged_templates = privileged_templates
        self._log = log
        self.objects = OwnedObjects(client, log=log)

    def setup(self, term: Term, *, resync: float) -> None:
        """Objects are compared with the API server every `resync` seconds: a fingerprint does not show everything."""
        controller = term.controller("egress", self.reconcile, workers=WORKERS)
        controller.watch(self._egresses, keys_of_change)
        controller.watch(self._deployments, keys_of_change)
        controller.watch(self._services, keys_of_change)
        controller.watch(self._budgets, keys_of_change)
        if self._cluster_networks is not None:
            controller.watch(self._cluster_networks, self._of_networks)
        controller.resync(self._forget_all, every=resync)

    async def reconcile(self, key: str) -> Result:
        """Bring everything of the Egress of that key in line. Raises the first refusal of the API server."""
        egress = self._egresses.get(key)
        if egress is None or egress.metadata.deleting:
            self.objects.forget(key)
            return DONE
        if errors := validate_fields(egress):
            self._warn(egress, "EgressInvalid", render_errors(errors))
        await self._accounts.ensure(egress.metadata.namespace)
        failures = _Failures([])
        if errors := validate_rights(egress, privileged_templates=self._privileged_templates):
            failures.template_refused = True
            message = "no router pods are made of the template, and a Deployment that is there keeps its own"
            self._warn(egress, "TemplateNotAllowed", f"{message}: {render_errors(errors)}")
            deployment = await self._attempt(egress, DEPLOYMENTS, self._scale_deployment, failures)
        else:
            deployment = await self._attempt(egress, DEPLOYMENTS, self._ensure_deployment, failures)
        await self._attempt(egress, SERVICES, self._ensure_service, failures)
        await self._attempt(egress, POD_DISRUPTION_BUDGETS, self._ensure_budget, failures)
        clean = not failures.refusals and not failures.names_taken and not failures.template_refused
        await self._update_status(
            egress, deployment, generation=egress.metadata.generation if clean else egress.status.observed_generation
        )
        if failures.refusals:
            raise failures.refusals[0]
        return RequeueAfter(TAKEN_SECONDS) if failures.names_taken else DONE

    async def _ensure_deployment(self, egress: Egress) -> Deployment:
        return await self.objects.ensure(
            DEPLOYMENTS,
            self._deployments.get(object_key(egress.metadata)),
            egress,
            wanted=render_deployment(egress, self._program),
            overlay=overlay_deployment,
        )

    async def _scale_deployment(self, egress: Egress) -> Deployment | None:
        try:
            return await self.objects.adjust(
                DEPLOYMENTS,
                self._deployments.get(object_key(egress.metadata)),
                egress,
                wanted=render_replicas(egress),
                overlay=overlay_replicas,
            )
        except NotFoundError:
            return None

    async def _ensure_service(self, egress: Egress) -> None:
        await self.objects.ensure(
            SERVICES,
            self._services.get(object_key(egress.metadata)),
            egress,
            wanted=render_service(egress, self._program.port),
            overlay=overlay_service,
        )

    async def _ensure_budget(self, egress: Egress) -> None:
        cached = self._budgets.get(object_key(egress.metadata))
        wanted = render_budget(egress)
        if wanted is None:
            await self.objects.remove(POD_DISRUPTION_BUDGETS, cached, egress)
        else:
            await self.objects.ensure(POD_DISRUPTION_BUDGETS, cached, egress, wanted=wanted, overlay=overlay_budget)

    async def _attempt(
        self,
        egress: Egress,
        resource: Resource[Any],
        step: Callable[[Egress], Awaitable[Deployment | None]],
        failures: _Failures,
    ) -> Deployment | None:
        """Do one step. A refusal is reported as an Event and kept in `failures`; any other error is raised, as the next
        steps would not fare better.
        """
        try:
            return await step(egress)
        except NameTakenError as error:
            failures.names_taken += 1
            if error.ownership is Ownership.FOREIGN:
                key = object_key(egress.metadata)
                message = f"the {resource.kind} {key} was not made for this Egress and is left alone"
                self._warn(egress, f"{resource.kind}NameTaken", f"{message}: rename or delete either")
                self._log.warning("a name is taken", egress=key, kind=resource.kind)
        except NamespaceTerminatingError:
            # The Egress is going to be deleted, too: what was deleted before it is not created again.
            self._log.debug("namespace is being deleted", egress=object_key(egress.metadata), kind=resource.kind)
        except _TRANSIENT:
            raise
        except ApiError as error:
            message = f"the API server refuses the {resource.kind}: {error.message}"
            self._warn(egress, f"{resource.kind}Refused", message)
            failures.refusals.append(error)
        return None

    def _forget_all(self) -> Iterable[str]:
        self.objects.forget()
        return self._all()

    def _all(self) -> list[str]:
        return [object_key(egress.metadata) for egress in self._egresses.items()]

    def _of_networks(self, old: ConfigMap | None, new: ConfigMap | None) -> Iterable[str]:
        return self._all() if new is not None and (old is None or old.data != new.data) else ()

    def _find_networks(self) -> tuple[str, ...] | None:
        """The cluster's networks that are not private; None where nobody tells them."""
        found = self._cluster_networks.items() if self._cluster_networks is not None else []
        return tuple(map(str, parse_cluster_networks(found[0].data))) if found else None

    def _warn(self, egress: Egress, reason: str, message: str) -> None:
        self._recorder.warn(EventSubject.of(EGRESSES, egress.metadata), reason=reason, message=message)

    def _own_deployment(self, egress: Egress) -> Deployment | None:
        cached = self._deployments.get(object_key(egress.metadata))
        ours = cached is not None and find_ownership(cached.metadata, egress) is Ownership.OURS
        return cached if ours else None

    async def _update_status(self, egress: Egress, deployment: Deployment | None, *, generation: int) -> None:
        """Bring the status in line. An outdated one is written again at the Deployment's next event.

        `generation` is that of the spec by which everything was made.
        """
        if deployment is None:
            # A Deployment whose change was refused still has its pods.
            deployment = self._own_deployment(egress)
        replicas = 0 if deployment is None else deployment.status.replicas
        metadata = egress.metadata
        networks = self._find_networks()
        status = EgressStatus(
            observed_generation=generation,
            replicas=replicas,
            selector=router_selector(metadata.name),
            cluster_networks=networks if networks is not None else egress.status.cluster_networks,
        )
        if status == egress.status:
            return
        patch = {
            "metadata": {"resourceVersion": metadata.resource_version},
            "status": {
                "observedGeneration": status.observed_generation,
                "replicas": status.replicas,
                "selector": status.selector,
                "clusterNetworks": list(status.cluster_networks),
            },
        }
        try:
            await self._client.patch(EGRESSES, metadata.name, patch, namespace=metadata.namespace, subresource="status")
        except NotFoundError:
            self._log.debug("egress deleted meanwhile", egress=object_key(metadata))


def keys_of_change(old: HasMetadata | None, new: HasMetadata | None) -> Iterable[str]:
    """Of an object, or of another one that has the same namespace and name."""
    return {object_key(item.metadata) for item in (old, new) if item is not None}
