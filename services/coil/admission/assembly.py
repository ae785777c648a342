"""Puts an admission server together, into the frame of a process: what every service with webhooks does the same.

One name stands for all of it: the Service that the API server calls, the webhook configurations, and (with a suffix)
the Secret of the self-managed certificates.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from coil.admission.ca_bundle import BundleInjector
from coil.admission.keeper import CertificateKeeper, CheckInterval
from coil.admission.self_managed import KubeSecretStore, SelfManagedIdentity
from coil.admission.server import AdmissionMetrics, Judge, serve_reviews
from coil.admission.serving_context import ServingContext
from coil.admission.settings import AdmissionSettings
from coil.admission.source import CertificateFolder, CertificateSource
from coil.kube.client import KubeClient
from coil.runtime.process import Process


@dataclass(frozen=True, slots=True)
class WebhookService:
    """Where the webhooks are found in the cluster: the Service `name` in `namespace`."""

    name: str
    namespace: str

    @property
    def hosts(self) -> tuple[str, ...]:
        """By which names the API server, or somebody with curl in a pod, calls it."""
        service = f"{self.name}.{self.namespace}.svc"
        return service, f"{service}.cluster.local"

    @property
    def secret(self) -> str:
        return f"{self.name}-webhook"


async def start_admission(
    process: Process,
    settings: AdmissionSettings,
    judges: Mapping[str, Judge],
    *,
    client: KubeClient,
    at: WebhookService,
) -> None:
    """Serve `judges` by path from now on, whether this replica leads or not; part of the process's readiness."""
    log = process.log.bind(part="admission")
    metrics = AdmissionMetrics(process.registry)
    serving = ServingContext()
    keeper = CertificateKeeper(
        _source(settings, client, at, process),
        serving=serving,
        injector=BundleInjector(client, name=at.name),
        pace=CheckInterval(settings.cert_check_interval, random.random),
        now=partial(datetime.now, UTC),
        metrics=metrics,
        log=log,
    )
    listening = serve_reviews(settings.webhook_addr, judges, serving=serving, metrics=metrics, log=log)
    endpoint = await process.stack.enter_async_context(listening)
    log.info("listening", address=str(endpoint))
    process.add_readiness("admission", keeper.check)
    process.spawn("certificates", keeper.run())


def _source(settings: AdmissionSettings, client: KubeClient, at: WebhookService, process: Process) -> CertificateSource:
    if settings.cert_dir is not None:
        return CertificateFolder(settings.cert_dir)
    return SelfManagedIdentity(
        KubeSecretStore(client=client, namespace=at.namespace, name=at.secret),
        name=at.name,
        hosts=(*at.hosts, *settings.webhook_host),
        now=partial(datetime.now, UTC),
        log=process.log.bind(part="admission"),
    )
