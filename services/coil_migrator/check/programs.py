"""The programs of Coil v2 in a cluster: their flags and the network configuration, as values of the chart.

The flags are those of the public manifests; what each means here is told in docs/upgrade.md.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coil.crd.meta import ObjectMeta
from coil.runtime import former_flag
from coil.runtime.flag import FormerFlag, parse_boolean
from coil_migrator.check.cluster import NETCONF, Cluster, document_of
from coil_migrator.check.finding import Finding, Severity
from coil_migrator.workload import Container, Workload

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Successor:
    """What takes the place of a program of Coil v2: the section of the chart's values that has extra flags for it, and
    the flags of the program there that have another name here, or no meaning.
    """

    section: str
    former: Sequence[FormerFlag]


PROGRAMS: Final = {
    "coil-ipam-controller": _Successor("ipam", former_flag.IPAM_CONTROLLER),
    "coil-egress-controller": _Successor("egress", former_flag.EGRESS_CONTROLLER),
    "coil-controller": _Successor("ipam", former_flag.IPAM_CONTROLLER),
    "coild": _Successor("coild", former_flag.COILD),
    "coil-router": _Successor("coild", former_flag.ROUTER),
}
"""By command."""

_OF_THE_CHART: Final = frozenset({"--socket", "--cert-dir", "--health-addr", "--webhook-addr", "--metrics-addr"})
"""Flags that the chart gives itself; `--metrics-addr` has a finding of its own."""


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def _boolean(*path: str) -> Callable[[str], Values]:
    return lambda text: _at(path, parse_boolean(text))


def _number(*path: str) -> Callable[[str], Values]:
    return lambda text: _at(path, int(text))


_VALUES: Final[Mapping[str, Callable[[str], Values]]] = {
    "--compat-calico": _boolean("coild", "compatCalico"),
    "--enable-egress": _boolean("egress", "enabled"),
    "--enable-ipam": _boolean("ipam", "enabled"),
    "--enable-originating-only": _boolean("egress", "originatingOnly"),
    "--egress-port": _number("egress", "port"),
    "--export-table-id": _number("coild", "exportTable"),
    "--log-level": lambda text: _at(("logs", "level"), text),
    "--log-format": lambda text: _at(("logs", "format"), text),
}
"""Flags here for which the chart has values."""
_EXTRA: Final = frozenset(
    {
        *("--pod-rule-prio", "--pod-table-id", "--protocol-id", "--gc-interval"),
        *("--route-sync-interval", "--route-sync-protocol-id"),
    }
)
"""Flags here for which it has none."""
_BOOLEANS: Final = frozenset(
    {"--compat-calico", "--enable-egress", "--enable-ipam", "--enable-originating-only"}
    | {flag.spelling for successor in PROGRAMS.values() for flag in successor.former if flag.boolean}
)
_DEFAULTS: Final = {
    "--compat-calico": "false",
    "--enable-egress": "true",
    "--enable-ipam": "true",
    "--enable-originating-only": "false",
    "--egress-port": "5555",
    "--export-table-id": "119",
    "--pod-rule-prio": "2000",
    "--pod-table-id": "116",
    "--protocol-id": "30",
    "--route-sync-interval": "1m",
    "--route-sync-protocol-id": "31",
    "--gc-interval": "1h0m0s",
}
"""Of the programs there, and of these."""


def check_programs(cluster: Cluster) -> Iterator[Finding]:
    """What runs, with which flags, and what has to be deleted before the chart is installed."""
    for kind, workload, container, program in programs_of(cluster):
        subject = f"{kind} {workload.metadata.namespace}/{workload.metadata.name}"
        yield Finding(
            severity=Severity.CHANGES,
            subject=subject,
            message=f"{program} of Coil v2 ({container.image or 'no image'}) is replaced by the chart",
            remedy=f"kubectl -n {workload.metadata.namespace} delete {kind.lower()} {workload.metadata.name}",
            values={"routeSync": {"enabled": True}} if program == "coil-router" else {},
        )
        flags = parse_flags(container.args or container.command[1:])
        yield from _check_flags(subject, PROGRAMS[program], flags)
        yield from _check_metrics(subject, flags)
        yield from _check_configuration(cluster, subject, workload)
    yield from _check_names(cluster)


def programs_of(cluster: Cluster) -> Iterator[tuple[str, Workload, Container, str]]:
    """The workloads of Coil v2, each with the container and the name of the program. Those of the chart are none."""
    for kind, workload in cluster.workloads:
        if is_ours(workload.metadata):
            continue
        for container in workload.spec.template.spec.containers:
            program = (container.command[0].rpartition("/")[2] if container.command else "") or container.name
            if program in PROGRAMS:
                yield kind, workload, container, program


def is_ours(metadata: ObjectMeta) -> bool:
    """Whether an object is one of the chart's."""
    return metadata.labels.get("helm.sh/chart", "").startswith("coil-")


def parse_flags(arguments: Iterable[str]) -> list[Flag]:
    """As pflag reads them: `--name=value`, `--name value`, and booleans without a value."""
    flags: list[Flag] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        if not equals:
            lone = name in _BOOLEANS or not words or words[0].startswith("-")
            value = "true" if lone else words.pop(0)
        flags.append(Flag(name, value))
    return flags


def _check_flags(subject: str, successor: _Successor, flags: Iterable[Flag]) -> Iterator[Finding]:
    for given in flags:
        if given.name in _OF_THE_CHART:
            continue
        try:
            values = [_values_of(successor, flag) for flag in _translate(successor, given)]
        except ValueError:
            yield Finding(
                severity=Severity.CHANGES,
                subject=subject,
                message=f"{given} is none of the flags of Coil v2's manifests, or has no such value",
                remedy="see `--help` of the new program",
            )
            continue
        for each in filter(None, values):
            yield Finding(severity=Severity.CHANGES, subject=subject, message=f"{given} is a value", values=each)


def _translate(successor: _Successor, given: Flag) -> list[Flag]:
    """The flags here that stand for one there; none where it has no meaning. Raises ValueError."""
    for former in successor.former:
        # klog's have one dash or two.
        if former.spelling.lstrip("-") == given.name.lstrip("-"):
            return [Flag(f"--{name.replace('_', '-')}", text) for name, text in former.read(given.value).items()]
    return [given]


def _values_of(successor: _Successor, flag: Flag) -> Values:
    """Empty for a default. Raises ValueError."""
    if _DEFAULTS.get(flag.name) == flag.value:
        return {}
    if (convert := _VALUES.get(flag.name)) is not None:
        return convert(flag.value)
    if flag.name in _EXTRA:
        return {successor.section: {"extraArgs": [str(flag)]}}
    raise ValueError(flag.name)


def _check_metrics(subject: str, flags: Iterable[Flag]) -> Iterator[Finding]:
    addresses = [flag.value for flag in flags if flag.name == "--metrics-addr"]
    if addresses and addresses[-1].rpartition(":")[0] in {"127.0.0.1", "localhost", "[::1]"}:
        return
    yield Finding(
        severity=Severity.CHANGES,
        subject=subject,
        message="its metrics are on every address of the node; here they are on localhost",
        remedy="set metrics.enabled if Prometheus is to read them from outside, and metrics.listenAddress if needed",
    )


def _check_configuration(cluster: Cluster, subject: str, workload: Workload) -> Iterator[Finding]:
    """The installer's file, and what it has in it."""
    for container in workload.spec.template.spec.init_containers:
        variables = {variable.name: variable for variable in container.env}
        name = variables["CNI_CONF_NAME"].value if "CNI_CONF_NAME" in variables else ""
        if name and name != "10-coil.conflist":
            yield Finding(
                severity=Severity.CHANGES,
                subject=subject,
                message=f"the network configuration is {name}, which is to be replaced",
                values={"cni": {"confName": name}},
            )
        if "CNI_NETCONF_FILE" in variables:
            yield Finding(
                severity=Severity.CHANGES,
                subject=subject,
                message="the network configuration is a file of the container, which is not read",
                remedy="compare it with the values for cni",
            )
        if (variable := variables.get(NETCONF)) is None:
            continue
        text = variable.value
        if variable.value_from is not None and (ref := variable.value_from.config_map_key_ref) is not None:
            found = cluster.config_maps.get((workload.metadata.namespace, ref.name))
            text = found.data.get(ref.key, "") if found is not None else ""
        document = document_of(text)
        plugins = document.get("plugins") if isinstance(document, dict) else None
        if not isinstance(plugins, list) or not all(isinstance(plugin, dict) for plugin in plugins):
            yield Finding(
                severity=Severity.MUST_MEND,
                subject=subject,
                message=f"{NETCONF} is no network configuration list that can be read",
                remedy="write the chart's values for cni yourself",
            )
            continue
        yield from _check_plugins(subject, document, plugins)


def _check_plugins(subject: str, document: Mapping[str, Any], plugins: list[dict[str, Any]]) -> Iterator[Finding]:
    types = [plugin.get("type") for plugin in plugins]
    position = types.index("coil") if "coil" in types else len(types)
    before, after = plugins[:position], plugins[position + 1 :]
    values: dict[str, Any] = {}
    if before:
        values["before"] = before
    if after:
        values["after"] = after
    if values and document.get("cniVersion", "1.0.0") != "1.0.0":
        values["version"] = document["cniVersion"]
    if document.get("name", "k8s-pod-network") != "k8s-pod-network":
        values["networkName"] = document["name"]
    if not values:
        return
    others = ", ".join(str(plugin.get("type")) for plugin in (*before, *after))
    message = f"the network configuration has {others}" if others else "the network has a name of its own"
    remedy = ""
    if "portmap" in types:
        remedy = (
            "portmap alone removes the host ports of pods that it has wired: keep it until these pods are gone, "
            "or for good"
        )
    yield Finding(severity=Severity.CHANGES, subject=subject, message=message, remedy=remedy, values={"cni": values})


_NAMES: Final = {
    "ServiceAccount": ("coild", "coil-ipam-controller", "coil-egress-controller"),
    "ClusterRole": ("coild", "coil-ipam-controller", "coil-egress-controller", "coil-egress"),
    "ClusterRoleBinding": ("coild", "coil-ipam-controller", "coil-egress-controller", "coil-egress"),
    "MutatingWebhookConfiguration": ("coil-ipam-controller", "coil-egress-controller"),
    "ValidatingWebhookConfiguration": ("coil-ipam-controller", "coil-egress-controller"),
}
"""Names that the chart has too; Helm does not take over what it did not create."""
_WEBHOOKS: Final = re.compile(r"coil(v2)?-.*webhook-configuration")
"""How the manifests of Coil v2 call theirs."""


def _check_names(cluster: Cluster) -> Iterator[Finding]:
    for kind, present in cluster.named.items():
        webhook = kind.endswith("WebhookConfiguration")
        for metadata in present:
            known = metadata.name in _NAMES[kind] or (webhook and _WEBHOOKS.fullmatch(metadata.name) is not None)
            if not known or is_ours(metadata):
                continue
            place = f"-n {metadata.namespace} " if metadata.namespace else ""
            what = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
            yield Finding(
                severity=Severity.CHANGES,
                subject=f"{kind} {what}",
                message=(
                    "calls the admission of Coil v2, which is to end with it"
                    if webhook
                    else "has a name of the chart, and Helm does not take over what it did not create"
                ),
                remedy=f"kubectl {place}delete {kind.lower()} {metadata.name}",
            )


def _at(path: Iterable[str], value: Any) -> Values:
    for key in reversed(tuple(path)):
        value = {key: value}
    return dict(value)
