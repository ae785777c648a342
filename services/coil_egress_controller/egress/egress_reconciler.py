"""Carries out Egresses: a Deployment of router pods, the Service in front of them, the disruption budget, the status.

For each Egress: the account of its namespace, then the three objects, each by itself, so that one that is refused keeps
nothing else from being there; then the status, which the scale subresource and with it autoscalers read. An Egress that
is gone needs nothing: its objects name it as their owner, and the garbage collector takes them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import DEPLOYMENTS, SERVICES, Deployment, PodDisruptionBudget
from coil.crd.egress import EGRESSES, Egress, EgressStatus
from coil.crd.egress_validation import validate_egress
from coil.crd.resource import Resource, object_key
from coil.egress.deployment import overlay_deployment, render_deployment
from coil.egress.disruption_budget import overlay_budget, render_budget
from coil.egress.ownership import Ownership, judge_ownership
from coil.egress.router_container import RouterProgram
from coil.egress.router_label import router_selector
from coil.egress.service import overlay_service, render_service
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
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil_egress_controller.cluster_view import ClusterView
from coil_egress_controller.egress.event import tell_invalid, tell_name_taken, tell_refused
from coil_egress_controller.egress.owned_object import NameTakenError, OwnedObjects
from coil_egress_controller.egress.service_account_reconciler import ServiceAccountReconciler

TAKEN_SECONDS = 30.0
"""Until a name that somebody else has is looked at again: nothing tells when it is free."""

_NO_REFUSAL = (AlreadyExistsError, ConflictError, UnauthorizedError, UnavailableError)
"""What says nothing about the object, and is gone the next time or soon after."""


@dataclass(slots=True)
class _Troubles:
    """What has kept objects of an Egress from being as wanted."""

    refusals: list[ApiError]
    names_taken: int = 0


class EgressReconciler:
    """Wants to be told of Egresses, and of what carries the labels of one and has its name."""

    def __init__(
        self,
        *,
        client: ApiClient,
        view: ClusterView,
        accounts: ServiceAccountReconciler,
        recorder: Recorder,
        program: RouterProgram,
        budgets: Resource[PodDisruptionBudget],
        log: FilteringBoundLogger,
    ) -> None:
        """`budgets` is the version of that kind which the API server serves."""
        self._client = client
        self._view = view
        self._accounts = accounts
        self._recorder = recorder
        self._program = program
        self._budgets = budgets
        self._log = log
        self.objects = OwnedObjects(client, log=log)

    async def reconcile(self, key: str) -> Result:
        """Bring everything of the Egress of that key in line. Raises the first refusal of the API server."""
        egress = self._view.egresses.get(key)
        if egress is None or egress.metadata.deleting:
            self.objects.forget(key)
            return DONE
        if errors := validate_egress(egress):
            tell_invalid(self._recorder, egress, errors)
        await self._accounts.ensure(egress.metadata.namespace)
        troubles = _Troubles([])
        deployment = await self._attempt(egress, DEPLOYMENTS, self._ensure_deployment, troubles)
        await self._attempt(egress, SERVICES, self._ensure_service, troubles)
        await self._attempt(egress, self._budgets, self._ensure_budget, troubles)
        await self._show(egress, deployment)
        if troubles.refusals:
            raise troubles.refusals[0]
        return RequeueAfter(TAKEN_SECONDS) if troubles.names_taken else DONE

    async def _ensure_deployment(self, egress: Egress) -> Deployment:
        return await self.objects.ensure(
            DEPLOYMENTS,
            self._view.deployments.get(object_key(egress.metadata)),
            egress,
            wanted=render_deployment(egress, self._program),
            overlay=overlay_deployment,
        )

    async def _ensure_service(self, egress: Egress) -> None:
        await self.objects.ensure(
            SERVICES,
            self._view.services.get(object_key(egress.metadata)),
            egress,
            wanted=render_service(egress, self._program.port),
            overlay=overlay_service,
        )

    async def _ensure_budget(self, egress: Egress) -> None:
        cached = self._view.budgets.get(object_key(egress.metadata))
        wanted = render_budget(egress)
        if wanted is None:
            await self.objects.remove(self._budgets, cached, egress)
        else:
            await self.objects.ensure(self._budgets, cached, egress, wanted=wanted, overlay=overlay_budget)

    async def _attempt(
        self,
        egress: Egress,
        resource: Resource[Any],
        step: Callable[[Egress], Awaitable[Deployment | None]],
        troubles: _Troubles,
    ) -> Deployment | None:
        """Do one step; a refusal is told and kept. Raises what is no refusal: the next ones would not fare better."""
        try:
            return await step(egress)
        except NameTakenError as error:
            troubles.names_taken += 1
            if error.ownership is Ownership.FOREIGN:
                tell_name_taken(self._recorder, egress, resource)
                self._log.warning("a name is taken", egress=object_key(egress.metadata), kind=resource.kind)
        except NamespaceTerminatingError:
            # The Egress goes, too, though it does not say so yet: what went before it is not made again.
            self._log.debug("namespace goes", egress=object_key(egress.metadata), kind=resource.kind)
        except _NO_REFUSAL:
            raise
        except ApiError as error:
            tell_refused(self._recorder, egress, resource, error)
            troubles.refusals.append(error)
        return None

    def _own_deployment(self, egress: Egress) -> Deployment | None:
        cached = self._view.deployments.get(object_key(egress.metadata))
        ours = cached is not None and judge_ownership(cached.metadata, egress) is Ownership.OURS
        return cached if ours else None

    async def _show(self, egress: Egress, deployment: Deployment | None) -> None:
        """Bring the status in line. One that is late is written again when the Deployment is heard of."""
        if deployment is None:
            # One that would not be changed still has its pods.
            deployment = self._own_deployment(egress)
        replicas = 0 if deployment is None else deployment.status.replicas
        status = EgressStatus(replicas=replicas, selector=router_selector(egress.metadata.name))
        if status == egress.status:
            return
        metadata = egress.metadata
        patch = {
            "metadata": {"resourceVersion": metadata.resource_version},
            "status": {"replicas": status.replicas, "selector": status.selector},
        }
        try:
            await self._client.patch(EGRESSES, metadata.name, patch, namespace=metadata.namespace, subresource="status")
        except NotFoundError:
            self._log.debug("egress went meanwhile", egress=object_key(metadata))
