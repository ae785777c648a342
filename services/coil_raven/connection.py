"""How coil-raven's commands reach the API server and OpenStack, and which cluster they are about."""

import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import NAMESPACES
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError
from coil.neutron.identity import ClusterId, cluster_id
from coil.openstack.call_metrics import CallMetrics
from coil.openstack.client import OpenStackClient, connect
from coil.openstack.recent_calls import RecentCalls
from coil.reconcile.backoff import Backoff
from coil.runtime.flag import parse_settings
from coil_raven.raven_conf import RavenConfError, api_server, read_raven_conf
from coil_raven.settings import Settings

NAME: Final = "coil-raven"
ABOUT: Final = "Gives namespaces networks in OpenStack's Neutron, and pods ports on them."
START_BACKOFF: Final = Backoff(base=0.5, cap=30.0)


def read_settings(
    arguments: Sequence[str], environment: Mapping[str, str], *, program: str = NAME, about: str = ABOUT
) -> tuple[Settings, Mapping[str, str]]:
    """What command line, environment and Kuryr's raven.conf say together; and the environment to go on with.

    Exits with 2, as `parse_settings` does, for what cannot be read.
    """
    parse = partial(parse_settings, Settings, arguments, program=program, about=about)
    settings = parse(environment)
    try:
        conf = read_raven_conf(settings.raven_conf)
        if conf is None:
            return settings, environment
        settings = parse(environment, configured=conf.settings)
        if conf.api_root and settings.kubeconfig is None:
            host, port = api_server(conf.api_root)
            environment = {**environment, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    except RavenConfError as error:
        sys.stderr.write(f"{program}: {error}\n")
        raise SystemExit(2) from None
    return settings, environment


def open_openstack(
    settings: Settings, *, metrics: CallMetrics | None = None, recent: RecentCalls | None = None
) -> OpenStackClient:
    """A client with the credentials as they are when it first needs them. A context manager. Asks nobody yet."""
    return OpenStackClient(
        partial(
            connect,
            settings.clouds_file,
            settings.cloud,
            app_name=NAME,
            fallback=partial(_configured_credentials, settings),
        ),
        metrics=metrics,
        recent=recent,
        concurrency=settings.concurrency,
    )


async def identify(settings: Settings, kube: ApiClient, *, log: FilteringBoundLogger) -> ClusterId:
    """The cluster's name in OpenStack; waits for the API server if the UID of kube-system is needed for it."""
    if settings.cluster_name:
        return ClusterId(settings.cluster_name)
    attempt = 0
    while True:
        try:
            return cluster_id((await kube.get(NAMESPACES, "kube-system")).metadata.uid)
        except ApiError as error:
            log.warning("waiting for the namespace kube-system", error=str(error))
        await asyncio.sleep(START_BACKOFF.delay(attempt, random.random))
        attempt += 1


def _configured_credentials(settings: Settings) -> Mapping[str, Any] | None:
    """As raven.conf has them now. Raises OSError where it cannot be used."""
    try:
        conf = read_raven_conf(settings.raven_conf)
    except RavenConfError as error:
        raise OSError(str(error)) from None
    return None if conf is None else conf.credentials
