"""The webhooks of a process, put together the same way by every service: settings, Service, certificates, server.

One name stands for all of it: the Service that the API server calls, the webhook configurations, and (with a suffix)
the Secret of the self-managed certificates.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from coil.admission.ca_bundle import BundleInjector
from coil.admission.certificate_manager import CertificateFolder, CertificateManager, CertificateSource, CheckInterval
from coil.admission.self_managed import SecretStore, SelfManagedIdentity
from coil.admission.server import AdmissionHandler, AdmissionMetrics, ServingContext, serve_reviews
from coil.crd.names import is_object_name
from coil.kube.client import KubeClient
from coil.runtime.flag import Endpoint, Group, flag, kind, parse_endpoint, parse_optional_path, parse_period
from coil.runtime.process import Process


@kind("HOST[,HOST...]")
def parse_hosts(text: str) -> tuple[str, ...]:
    """Names and addresses between commas, none twice; empty means none."""
    hosts = [_parse_host(host.strip()) for host in text.split(",")] if text else []
    return tuple(dict.fromkeys(hosts))


def _parse_host(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        pass
    if is_object_name(text):  # a name in DNS, in lower case
        return text
    raise ValueError('host names or addresses, such as "webhook.example.com,192.0.2.1"')


def webhook_flag(default: str) -> Endpoint:
    """The `webhook_addr` of a process whose default is `default`, such as ":9443"."""
    return flag(
        default,
        parse=parse_endpoint,
        group=Group.WEBHOOKS,
        help="address of the webhooks; without a host, every address",
    )


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings:
    """The settings of a process that answers admission reviews; its own settings extend them.

    Every process gives its own port. Times are in seconds.
    """

    webhook_addr: Endpoint
    webhook_host: tuple[str, ...] = flag(
        "",
        parse=parse_hosts,
        group=Group.WEBHOOKS,
        help="further names or addresses of the webhooks, for self-managed certificates",
    )
    cert_dir: Path | None = flag(
        "",
        parse=parse_optional_path,
        group=Group.WEBHOOKS,
        help="folder of tls.crt and tls.key (and ca.crt, to be put into the webhook configurations); "
        "self-managed certificates if not given",
    )
    webhook_client_ca: Path | None = flag(
        "",
        parse=parse_optional_path,
        group=Group.WEBHOOKS,
        help="file of authorities, PEM; connections need a client certificate of one of them, as the API server has "
        "where its admission configuration gives it one; if not given, everybody may connect",
    )
    cert_check_interval: float = flag(
        "1m",
        parse=parse_period,
        group=Group.WEBHOOKS,
        help="how often certificates and webhook configurations are looked at",
    )


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
    handlers: Mapping[str, AdmissionHandler],
    *,
    client: KubeClient,
    at: WebhookService,
) -> None:
    """Serve `handlers` by path from now on, whether this replica leads or not; part of the process's readiness."""
    log = process.log.bind(part="admission")
    metrics = AdmissionMetrics(process.registry)
    serving = ServingContext(client_ca=settings.webhook_client_ca)
    certificates = CertificateManager(
        _source(settings, client, at, process),
        serving=serving,
        injector=BundleInjector(client, name=at.name),
        interval=CheckInterval(settings.cert_check_interval, random.random),
        now=partial(datetime.now, UTC),
        metrics=metrics,
        log=log,
    )
    listening = serve_reviews(settings.webhook_addr, handlers, serving=serving, metrics=metrics, log=log)
    endpoint = await process.stack.enter_async_context(listening)
    log.info("listening", address=str(endpoint))
    process.add_readiness("admission", certificates.check)
    process.spawn("certificates", certificates.run())


def _source(settings: AdmissionSettings, client: KubeClient, at: WebhookService, process: Process) -> CertificateSource:
    if settings.cert_dir is not None:
        return CertificateFolder(settings.cert_dir)
    return SelfManagedIdentity(
        SecretStore(client, namespace=at.namespace, name=at.secret),
        name=at.name,
        hosts=(*at.hosts, *settings.webhook_host),
        now=partial(datetime.now, UTC),
        log=process.log.bind(part="admission"),
    )
