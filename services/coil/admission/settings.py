"""The settings of a process that answers admission reviews; its own settings extend them."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from coil.crd.names import is_object_name
from coil.runtime.flag import Endpoint, Group, flag, kind, parse_optional_path, parse_period


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


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings:
    """Every process gives its own port. Times are in seconds."""

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
    cert_check_interval: float = flag(
        "1m",
        parse=parse_period,
        group=Group.WEBHOOKS,
        help="how often certificates and webhook configurations are looked at",
    )
