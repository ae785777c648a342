"""Which version of PodDisruptionBudget the API server serves: v1beta1 before 1.21, only v1 from 1.25 on.

The version is chosen at the start, because a cache is of one kind. An API server that is upgraded under a running
controller may stop serving it; then the process ends, is restarted, and chooses again.
"""

import asyncio
from collections.abc import Awaitable, Callable

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import POLICY_GROUP
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
