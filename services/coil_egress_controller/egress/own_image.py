"""The controller's own image, the default of router pods, so that both have the same version."""

import asyncio
from collections.abc import Awaitable, Callable

from structlog.typing import FilteringBoundLogger

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError
from coil.reconcile.backoff import Backoff

RETRY = Backoff(base=0.5, cap=15.0)


class ImageUnknownError(Exception):
    """The image of router pods is not known. The message says what to set."""


class ContainerImage(Struct, frozen=True, kw_only=True):
    name: str
    image: str = ""


class ContainerList(Struct, frozen=True, kw_only=True):
    containers: tuple[ContainerImage, ...] = ()


class OwnPod(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: ContainerList = ContainerList()


OWN_PODS: Resource[OwnPod] = Resource("", "v1", "pods", "Pod", namespaced=True, type=OwnPod)


async def find_own_image(
    client: ApiClient,
    *,
    namespace: str,
    name: str,
    container: str,
    log: FilteringBoundLogger,
    random: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str:
    """The image of `container` in the pod of that name, or of its only container.

    Waits for the API server as long as it takes. Raises ImageUnknownError.
    """
    if not (namespace and name):
        raise ImageUnknownError("set --egress-image, or COIL_POD_NAMESPACE and COIL_POD_NAME from the pod's own fields")
    attempt = 0
    while True:
        try:
            return select_image(await client.get(OWN_PODS, name, namespace=namespace), container)
        except ApiError as error:
            log.warning("waiting for the API server", error=str(error))
            await sleep(RETRY.delay(attempt, random))
            attempt += 1


def select_image(pod: OwnPod, container: str) -> str:
    """See `find_own_image`. Raises ImageUnknownError."""
    containers = pod.spec.containers
    named = [candidate for candidate in containers if candidate.name == container] or list(containers)
    if len(named) != 1:
        raise ImageUnknownError(f"pod {pod.metadata.name} has no container {container!r}: set --egress-image")
    return named[0].image
