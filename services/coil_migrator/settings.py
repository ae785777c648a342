"""What a person may ask of a migration. The names and defaults are those of Coil v2's migrator; some flags are new."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from coil.crd.resource import NamespacedName
from coil.runtime.flag import (
    Group,
    flag,
    kind,
    parse_boolean,
    parse_duration,
    parse_optional_path,
    parse_path,
    parse_period,
    repeated_flag,
)
from coil.runtime.settings import parse_namespace, parse_optional_name
from coil_migrator.dump import DumpOptions
from coil_migrator.etcd_reader import EtcdAccess
from coil_migrator.replace import ReplaceOptions


@kind("URL[,URL...]")
def parse_endpoints(text: str) -> tuple[str, ...]:
    """URLs of etcd, separated by commas."""
    urls = tuple(url.strip().rstrip("/") for url in text.split(","))
    for url in urls:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in {"http", "https"} and parts.hostname and not parts.path and parts.port != 0
        except ValueError:
            fits = False
        if not fits:
            raise ValueError('URLs separated by commas, such as "https://10.0.0.1:2379"')
    return urls


@kind("PREFIX")
def parse_prefix(text: str) -> bytes:
    """The beginning of v1's keys."""
    if not text.endswith("/"):
        raise ValueError('a prefix of keys that ends with a slash, such as "/coil/"')
    return text.encode()


@kind("text|json")
def parse_output(text: str) -> str:
    """The form of an answer."""
    if text not in {"text", "json"}:
        raise ValueError('"text" or "json"')
    return text


@kind("TEXT")
def parse_any_text(text: str) -> str:
    """Any text, an empty one too."""
    return text


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """What all commands need."""

    kubeconfig: Path | None = flag(
        "",
        parse=parse_optional_path,
        env="KUBECONFIG",
        group=Group.API_SERVER,
        help="how to reach the API server; as kubectl if not given",
    )


@dataclass(frozen=True, kw_only=True)
class CheckSettings(ClusterSettings):
    """`output` is the form of what is told."""

    namespace: tuple[str, ...] = repeated_flag(
        "kube-system",
        parse=parse_namespace,
        group=Group.MIGRATION,
        help="where the programs of Coil v2 or egressgateway run, may be repeated; those of other namespaces are not "
        "looked at",
    )

    filename: tuple[Path, ...] = repeated_flag(
        parse=parse_path,
        group=Group.MIGRATION,
        help='file with manifests, "-" for standard input, may be repeated; they are looked at as if they were applied',
        short="-f",
    )
    local: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.MIGRATION,
        help="look at the manifests alone, without an API server",
    )
    output: str = flag("text", parse=parse_output, group=Group.MIGRATION, help="text or json", short="-o")

    def __post_init__(self) -> None:
        if self.local and not self.filename:
            raise ValueError("--local needs manifests: give --filename")


@dataclass(frozen=True, kw_only=True)
class ConvertSettings(ClusterSettings):
    """Without `pin`, no API server is asked."""

    filename: tuple[Path, ...] = repeated_flag(
        parse=parse_path,
        group=Group.MIGRATION,
        help='file with manifests, "-" for standard input, may be repeated',
        short="-f",
    )
    pin: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.MIGRATION,
        help="ask the API server which addresses gateways and policies have, and write those to which nothing in them "
        "leads",
    )

    def __post_init__(self) -> None:
        if not self.filename:
            raise ValueError("there is nothing to convert: give --filename")


@dataclass(frozen=True, kw_only=True)
class ChangeSettings(ClusterSettings):
    """What commands need that change something."""

    dry_run: bool = flag(
        "false", parse=parse_boolean, group=Group.MIGRATION, help="change nothing, and say what would be done"
    )


@dataclass(frozen=True, kw_only=True)
class DumpSettings(ChangeSettings):
    """Times are in seconds."""

    etcd_endpoints: tuple[str, ...] = flag(
        "http://127.0.0.1:2379", parse=parse_endpoints, group=Group.ETCD, help="v1's etcd; URLs, separated by commas"
    )
    etcd_prefix: bytes = flag("/coil/", parse=parse_prefix, group=Group.ETCD, help="what v1's keys begin with")
    etcd_timeout: float = flag(
        "2s", parse=parse_period, group=Group.ETCD, help="how long a connection to etcd may take"
    )
    etcd_tls_ca: Path | None = flag(
        "", parse=parse_optional_path, group=Group.ETCD, help="file with the authority of etcd's certificate"
    )
    etcd_tls_cert: Path | None = flag(
        "", parse=parse_optional_path, group=Group.ETCD, help="file with a client certificate for etcd"
    )
    etcd_tls_key: Path | None = flag(
        "", parse=parse_optional_path, group=Group.ETCD, help="file with the key of that certificate"
    )
    etcd_username: str = flag("", parse=parse_any_text, group=Group.ETCD, help="user of etcd, where it has users")
    etcd_password: str = flag(
        "", parse=parse_any_text, env="ETCD_PASSWORD", group=Group.ETCD, help="password of that user"
    )
    skip_uninstall: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.MIGRATION,
        help="DANGER: leave v1 running, which may give addresses that the dump lacks",
    )
    output: Path | None = flag(
        "",
        parse=parse_optional_path,
        group=Group.MIGRATION,
        help="file for the manifests, replaced as a whole; standard output if not given",
    )
    timeout: float = flag(
        "2m", parse=parse_period, group=Group.MIGRATION, help="how long each part of v1 may take to end"
    )

    @property
    def etcd(self) -> EtcdAccess:
        return EtcdAccess(
            endpoints=self.etcd_endpoints,
            connect_timeout=self.etcd_timeout,
            ca=self.etcd_tls_ca,
            certificate=self.etcd_tls_cert,
            key=self.etcd_tls_key,
            username=self.etcd_username,
            password=self.etcd_password,
        )

    @property
    def options(self) -> DumpOptions:
        return DumpOptions(
            prefix=self.etcd_prefix,
            dry_run=self.dry_run,
            skip_uninstall=self.skip_uninstall,
            timeout=self.timeout,
        )


@dataclass(frozen=True, kw_only=True)
class ReplaceSettings(ChangeSettings):
    """Times are in seconds."""

    interval: float = flag(
        "10s", parse=parse_duration, group=Group.MIGRATION, help="how long to wait before the pods of the next node"
    )
    timeout: float = flag(
        "10m",
        parse=parse_period,
        group=Group.MIGRATION,
        help="how long one pod may take to be evicted, to end, and until its successor is ready",
    )
    disable_eviction: bool = flag(
        "false",
        parse=parse_boolean,
        group=Group.MIGRATION,
        help="delete pods instead of evicting them, whatever PodDisruptionBudgets say",
    )
    coild: NamespacedName | None = flag(
        "kube-system/coild",
        parse=parse_optional_name,
        group=Group.MIGRATION,
        help="DaemonSet to restart at the end; empty for none",
    )
    yes: bool = flag("false", parse=parse_boolean, group=Group.MIGRATION, help="do not ask before pods are deleted")

    @property
    def options(self) -> ReplaceOptions:
        return ReplaceOptions(
            interval=self.interval, timeout=self.timeout, evict=not self.disable_eviction, coild=self.coild
        )
