"""The programs of Coil v2 in a cluster: their flags and the network configuration, as values of the chart.

The flags are those of the public manifests; what each means here is told in docs/upgrade.md.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from coil.crd.meta import ObjectMeta
from coil_migrator.check.cluster import NETCONF, Cluster, Container, Workload, document_of
from coil_migrator.check.finding import Finding, Severity

Values = Mapping[str, Any]

PROGRAMS: Final = {
    "coil-ipam-controller": "ipam",
    "coil-egress-controller": "egress",
    "coil-controller": "ipam",
    "coild": "coild",
    "coil-router": "coild",
}
"""Commands of Coil v2, with the section of the chart's values that has extra flags for what takes their place."""

_IGNORED: Final = re.compile(
    r"--?(zap-(stacktrace-level|time-encoding)|backend|enable-nft|register-from-main|enable-cert-rotation|"
    r"enable-restart-on-cert-refresh|v|vmodule|log_.*|stderrthreshold|add_dir_header|alsologtostderr|"
    r"legacy_stderr_threshold_behavior|logtostderr|one_output|skip_headers|skip_log_headers|socket|cert-dir)"
)
"""Flags that have no meaning here, or that the chart gives itself."""
_ADDRESSES: Final = frozenset({"--metrics-addr", "--health-addr", "--webhook-addr"})
_BOOLEANS: Final = frozenset(
    {"--compat-calico", "--enable-egress", "--enable-ipam", "--enable-originating-only", "--zap-devel"}
)


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    value: str

    @property
    def is_true(self) -> bool:
        return self.value.lower() in {"1", "t", "true"}


def _boolean(*path: str) -> Callable[[Flag], Values]:
    return lambda flag: _at(path, flag.is_true)


def _number(*path: str) -> Callable[[Flag], Values]:
    return lambda flag: _at(path, int(flag.value))


_VALUES: Final[Mapping[str, Callable[[Flag], Values]]] = {
    "--compat-calico": _boolean("coild", "compatCalico"),
    "--enable-egress": _boolean("egress", "enabled"),
    "--enable-ipam": _boolean("ipam", "enabled"),
    "--enable-originating-only": _boolean("egress", "originatingOnly"),
    "--egress-port": _number("egress", "port"),
    "--export-table-id": _number("coild", "exportTable"),
}
"""Flags for which the chart has values."""
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
    "--gc-interval": "1h0m0s",
}


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
        yield from _check_flags(subject, program, parse_flags(container.args or container.command[1:]))
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


def _check_flags(subject: str, program: str, flags: Iterable[Flag]) -> Iterator[Finding]:
    for flag in flags:
        if _IGNORED.fullmatch(flag.name) or _DEFAULTS.get(flag.name) == flag.value:
            continue
        written = f"{flag.name}={flag.value}"
        if flag.name in _ADDRESSES:
            yield from _check_address(subject, flag)
            continue
        values = _values_of(program, flag)
        if values is None:
            message = f"{written} is none of the flags of Coil v2's manifests that this check knows"
            yield Finding(
                severity=Severity.CHANGES, subject=subject, message=message, remedy="see `--help` of the new program"
            )
            continue
        yield Finding(severity=Severity.CHANGES, subject=subject, message=f"{written} is a value", values=values)


def _values_of(program: str, flag: Flag) -> Values | None:
    section = PROGRAMS[program]
    if flag.name == "--update-interval":
        return {"coild": {"extraArgs": [f"--route-sync-interval={flag.value}"]}}
    if flag.name in {"--zap-log-level", "--zap-devel", "--zap-encoder"}:
        return {section: {"extraArgs": [f"{flag.name}={flag.value}"]}}
    try:
        if (convert := _VALUES.get(flag.name)) is not None:
            return convert(flag)
    except ValueError:
        return None
    if flag.name in {"--pod-rule-prio", "--pod-table-id", "--protocol-id", "--gc-interval"}:
        return {section: {"extraArgs": [f"{flag.name}={flag.value}"]}}
    return None


def _check_address(subject: str, flag: Flag) -> Iterator[Finding]:
    if flag.name == "--metrics-addr":
        yield Finding(
            severity=Severity.CHANGES,
            subject=subject,
            message=f"{flag.name}={flag.value}: here metrics are on localhost unless the chart is told otherwise",
            remedy="if Prometheus is to read them from outside of the nodes, keep metrics.enabled",
            values={"metrics": {"enabled": True}},
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
        if document.get("cniVersion", "1.0.0") != "1.0.0":
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
_WEBHOOKS: Final = re.compile(r"coilv?2?-.*")


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
