"""What the controller finds out at its start: the served version of PodDisruptionBudget, and its own image.

v1beta1 of that kind was served before 1.21, and only v1 is from 1.25 on. The version is chosen at the start, because a
cache is of one kind. An API server that is upgraded under a running controller may stop serving it; then the process
ends, is restarted, and chooses again. The image is the default of router pods, so that both have the same version.
"""

import asyncio
from collections.abc import Awaitable, Callable

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import POLICY_GROUP
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError
from coil.reconcile.backoff import Backoff

KNOWN_VERSIONS = ("v1", "v1beta1")
"""In order of preference."""
RETRY = Backoff(base=0.5, cap=15.0)
CHECK_SECONDS = 60.0


class UnservedPolicyError(Exception):
    """The API server serves no version that Coil knows, or no longer the one in use."""


def select_version(served: tuple[str, ...]) -> str:
    """Raises UnservedPolicyError."""
    for version in KNOWN_VERSIONS:
        if version in served:
            return version
    raise UnservedPolicyError(f"{POLICY_GROUP} is served in {served}; one of {KNOWN_VERSIONS} is needed")


async def choose_version(
    client: ApiClient,
    *,
    log: FilteringBoundLogger,
    random: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str:
    """Waits for the API server as long as it takes. Raises UnservedPolicyError."""
    attempt = 0
    while True:
        try:
            return select_version(await client.served_versions(POLICY_GROUP))
        except ApiError as error:
            log.warning("waiting for the API server", error=str(error))
            await sleep(RETRY.delay(attempt, random))
            attempt += 1


async def watch_version(
    client: ApiClient, version: str, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Returns never; raises UnservedPolicyError when `version` is served no more."""
    while True:
        await sleep(CHECK_SECONDS)
        try:
            served = await client.served_versions(POLICY_GROUP)
        except ApiError:
            continue  # the answer says nothing about versions
        if version not in served:
            raise UnservedPolicyError(f"{POLICY_GROUP}/{version} is no longer served")


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


async def find_own_image(client: ApiClient, *, namespace: str, name: str, container: str) -> str:
    """The image of `container` in the pod of that name, or of its only container.

    Raises ImageUnknownError, or ApiError.
    """
    if not (namespace and name):
        raise ImageUnknownError("set --egress-image, or COIL_POD_NAMESPACE and COIL_POD_NAME from the pod's own fields")
    pod = await client.get(OWN_PODS, name, namespace=namespace)
    return select_image(pod, container)


def select_image(pod: OwnPod, container: str) -> str:
    """See `find_own_image`. Raises ImageUnknownError."""
    containers = pod.spec.containers
    named = [candidate for candidate in containers if candidate.name == container] or list(containers)
    if len(named) != 1:
        raise ImageUnknownError(f"pod {pod.metadata.name} has no container {container!r}: set --egress-image")
    return named[0].image
