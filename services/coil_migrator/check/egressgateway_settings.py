"""The settings of egressgateway 0.6, the key `conf.yml` of its ConfigMap, as values of the chart.

The file is the section `feature` of its chart's values. What is as that chart's default, and means the same here, is
not told.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final

from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS
from coil.eip.gateway_lease import LONGEST_FENCE
from coil.runtime.flag import parse_integer, parse_patterns
from coil_migrator.check.cluster import Cluster, configurations_of
from coil_migrator.check.egressgateway_object import Untyped
from coil_migrator.check.finding import Finding, Severity
from coil_migrator.manifest_reader import ManifestError, parse_manifests

FILE: Final = "conf.yml"

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Setting:
    """One of theirs: its default, and the values that keep another one; or, without `values`, what holds instead.
    `values` raises ValueError for what cannot be kept.
    """

    default: Any
    values: Callable[[Any], Values] | None = None
    instead: str = ""


def _eip(name: str) -> Callable[[Any], Values]:
    return lambda value: {"eip": {name: value}}


def _number(name: str, maximum: int) -> Callable[[Any], Values]:
    parse = parse_integer(1, maximum)
    return lambda value: {"eip": {name: parse(str(value))}}


def _network(name: str) -> Callable[[Any], Values]:
    return lambda value: {"eip": {name: str(ip_network(value))}}


def _networks(value: Any) -> Values:
    return {"eip": {"clusterCIDR": [str(ip_network(text, strict=False)) for text in _texts(value)]}}


def _patterns(value: Any) -> Values:
    patterns = _texts(value)
    if any("," in pattern for pattern in patterns):
        raise ValueError("a comma in a regular expression")
    parse_patterns(",".join(patterns))
    return {"eip": {"announcedInterfacesToExclude": patterns}}


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("no list of texts")
    return value


_FAMILIES: Final = "both families are always on; a gateway has those of its addresses"
_PARENT: Final = "the tunnels leave by the network interface with the Node's address"
_REPLIES: Final = "replies always come back by the tunnel that the connection has taken"
_NFTABLES: Final = "the rules are those of the table inet coil-eip of nftables"
_NETWORKS: Final = "addresses of Nodes, pods and Services are always the cluster's own (docs/eip-gateway.md)"

_SETTINGS: Final[Mapping[str, _Setting]] = {
    "enableIPv4": _Setting(True, instead=_FAMILIES),
    "enableIPv6": _Setting(False, instead=_FAMILIES),
    "datapathMode": _Setting("iptables", instead=_NFTABLES),
    "tunnelIpv4Subnet": _Setting("172.31.0.0/16", _network("tunnelIPv4Subnet")),
    "tunnelIpv6Subnet": _Setting("fd11::/112", _network("tunnelIPv6Subnet")),
    "tunnelDetectMethod": _Setting("defaultRouteInterface", instead=_PARENT),
    "tunnelDetectCustomInterface": _Setting([], instead=_PARENT),
    "enableGatewayReplyRoute": _Setting(False, instead=_REPLIES),
    "gatewayReplyRouteTable": _Setting(600, instead=_REPLIES),
    "gatewayReplyRouteMark": _Setting(39, instead=_REPLIES),
    "iptables.backendMode": _Setting("auto", instead=_NFTABLES),
    "vxlan.name": _Setting("egress.vxlan", instead="the link is always called egress.vxlan"),
    "vxlan.port": _Setting(7789, _number("tunnelPort", 65535)),
    "vxlan.id": _Setting(100, _number("tunnelVNI", 2**24 - 1)),
    "vxlan.disableChecksumOffload": _Setting(False, lambda value: _eip("tunnelChecksumOffload")(not value)),
    "clusterCIDR.autoDetect.podCidrMode": _Setting("auto", instead=_NETWORKS),
    "clusterCIDR.autoDetect.clusterIP": _Setting(True, instead=_NETWORKS),
    "clusterCIDR.autoDetect.nodeIP": _Setting(True, instead=_NETWORKS),
    "clusterCIDR.extraCidr": _Setting([], _networks),
    "maxNumberEndpointPerSlice": _Setting(
        100, lambda value: {"eip": {"limits": {"endpointsPerSlice": parse_integer(1, 1000)(str(value))}}}
    ),
    # Its default is not the chart's.
    "announcedInterfacesToExclude": _Setting(None, _patterns),
    "mark": _Setting("0x26000000", instead="marks are always 0x26……00"),
}
_FAILOVER: Final = "gatewayFailover"
_FAILOVER_DEFAULTS: Final[Values] = {
    "enable": False,
    "tunnelMonitorPeriod": 5,
    "tunnelUpdatePeriod": 5,
    "eipEvictionTimeout": 15,
}


def check_settings(cluster: Cluster) -> Iterator[Finding]:
    """Of each ConfigMap that its programs have; and the networks that EgressClusterInfos add."""
    keys = {
        (workload.metadata.namespace, name) for _, workload in cluster.workloads for name in configurations_of(workload)
    }
    for key in sorted(keys):
        found = cluster.config_maps.get(key)
        if found is not None and FILE in found.data:
            yield from _check_file(f"ConfigMap {'/'.join(key)}", found.data[FILE])
    for info in cluster.cluster_infos:
        yield from _check_info(info)


def _check_file(subject: str, text: str) -> Iterator[Finding]:
    try:
        [value] = [manifest.value for manifest in parse_manifests(text, name=FILE)]
        if not isinstance(value, dict):
            raise ValueError("no mapping")
    except (ManifestError, ValueError) as error:
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=subject,
            message=f"{FILE} cannot be read: {error}",
            remedy="write the chart's values for eip yourself",
        )
        return
    yield from _check_failover(subject, value)
    for name, given in _flatten({key: each for key, each in value.items() if key != _FAILOVER}):
        yield from _check_setting(subject, name, given)


def _check_setting(subject: str, name: str, given: Any) -> Iterator[Finding]:
    setting = _SETTINGS.get(name)
    if setting is not None and given == setting.default:
        return
    told = f"{name}: {given}"
    if setting is None or setting.values is None:
        instead = setting.instead if setting is not None else "none of egressgateway's, and of no effect"
        yield Finding(
            severity=Severity.CHANGES, subject=subject, message=f"{told} is no setting of the chart: {instead}"
        )
        return
    try:
        values = setting.values(given)
    except (ValueError, TypeError) as error:
        yield Finding(
            severity=Severity.MUST_MEND,
            subject=subject,
            message=f"{told} cannot be a value of the chart: {error}",
            remedy="choose another for section eip (charts/coil/values.yaml)",
        )
        return
    yield Finding(severity=Severity.CHANGES, subject=subject, message=f"{told} is a value", values=values)


def _flatten(value: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings with their paths. A list is one."""
    for key, each in value.items():
        if isinstance(each, dict):
            yield from _flatten(each, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", each


def _check_failover(subject: str, value: Values) -> Iterator[Finding]:
    given = value.get(_FAILOVER)
    failover = {**_FAILOVER_DEFAULTS, **(given if isinstance(given, dict) else {})}
    if not failover["enable"]:
        yield Finding(
            severity=Severity.CHANGES,
            subject=subject,
            message=(
                "addresses leave a node when Kubernetes takes it for not ready; here, within a second of the agent's "
                "last sign of life, and all nodes give theirs up while the API server does not answer"
            ),
            remedy="a longer eip.lease keeps them longer (docs/eip-gateway.md, Failover time)",
        )
        return
    seconds = failover["eipEvictionTimeout"]
    fits = isinstance(seconds, int) and 0 < seconds <= LONGEST_FENCE
    yield Finding(
        severity=Severity.CHANGES,
        subject=subject,
        message=(
            f"addresses leave a node {seconds} s after the agent's last sign of life; here, eip.lease says when, and "
            "the other periods follow from it"
        ),
        remedy="leave the value away for the default, less than a second"
        if fits
        else f"eip.lease may be {LONGEST_FENCE:g}s at most",
        values={"eip": {"lease": f"{seconds}s"}} if fits else {},
    )


def _check_info(info: Untyped) -> Iterator[Finding]:
    subject = f"{EGRESS_CLUSTER_INFOS.kind} {info.metadata.name}"
    spec = info.spec if isinstance(info.spec, dict) else {}
    detect = spec.get("autoDetect")
    if isinstance(detect, dict):
        for name, given in detect.items():
            yield from _check_setting(subject, f"clusterCIDR.autoDetect.{name}", given)
    if extra := spec.get("extraCidr"):
        yield from _check_setting(subject, "clusterCIDR.extraCidr", extra)
