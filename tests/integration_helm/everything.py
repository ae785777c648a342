"""Values that ask for all that the chart can make, and ways to look through what came of them."""

from collections.abc import Iterable
from typing import Any, Final

from coil.runtime.flag import parse_settings
from coil_egress_agent.eip.settings import Settings as AgentSettings
from coil_egress_controller.settings import Settings as EgressSettings
from coil_ipam_controller.settings import Settings as IpamSettings
from coil_raven.settings import Settings as RavenSettings
from coild.settings import Settings as CoildSettings
from integration.access.right import RAVEN_VALUES
from integration.helm.chart import Document, profile_names

METRICS: Final = {
    "enabled": True,
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}
EVERYTHING: Final[dict[str, object]] = {
    "eip": {
        "enabled": True,
        "clusterCIDR": ["10.96.0.0/12", "fd00:96::/112"],
        "forwardShim": True,
        "egressPolicies": True,
    },
    "routeSync": {"enabled": True},
    "raven": RAVEN_VALUES,
    "metrics": METRICS,
}
ON_POD_NETWORK: Final[dict[str, object]] = {
    "egress": {"hostNetwork": False, "loadKernelModules": False},
    "webhooks": {"certificates": "cert-manager"},
    "metrics": METRICS,
}
CLEANUP: Final[dict[str, object]] = {
    "eip": {"enabled": True},
    "raven": RAVEN_VALUES,
    "cleanup": {"enabled": True},
}

WITH_COILD: Final = tuple(name for name in profile_names() if name != "eip-only")
"""Profiles with coild on each node."""
WORKLOADS: Final = ("Deployment", "DaemonSet", "Job", "Pod")
SETTINGS: Final[dict[str, type[Any]]] = {
    "coil-ipam-controller": IpamSettings,
    "coil-egress-controller": EgressSettings,
    "coil-egress-agent-node": AgentSettings,
    "coil-raven": RavenSettings,
    "coild": CoildSettings,
}
ENVIRONMENT: Final = {"COIL_NODE_NAME": "node-1", "COIL_POD_NAMESPACE": "kube-system", "COIL_POD_NAME": "controller-1"}


def pick(documents: Iterable[Document], kind: str, name: str) -> Document:
    """The one of that kind and name."""
    (found,) = (each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def names(documents: Iterable[Document], *kinds: str) -> set[str]:
    """Of the documents of these kinds."""
    return {document["metadata"]["name"] for document in documents if document["kind"] in kinds}


def without_record(documents: Iterable[Document]) -> list[Document]:
    """All but what the values were, which `kubectl coil sysdump` collects."""
    return [document for document in documents if document["metadata"]["name"] != "coil-values"]


def pod_spec(workload: Document) -> dict[str, Any]:
    """Of a Deployment, a DaemonSet, a Job or a Pod."""
    spec: dict[str, Any] = workload["spec"]
    return spec if workload["kind"] == "Pod" else spec["template"]["spec"]


def all_containers(workload: Document) -> dict[str, dict[str, Any]]:
    """By name, those of the start included."""
    spec = pod_spec(workload)
    return {container["name"]: container for container in (*spec.get("initContainers", ()), *spec["containers"])}


def workloads(documents: list[Document]) -> list[Document]:
    return [document for document in documents if document["kind"] in WORKLOADS]


def parse(container: dict[str, Any]) -> Any:
    """The program's settings, by its own parser."""
    program = container["command"][0]
    # What has no value here is from the pod's own fields.
    given = {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}
    environment = {name: value or ENVIRONMENT[name] for name, value in given.items()}
    return parse_settings(SETTINGS[program], container["args"], environment, program=program, about="")


def programs(documents: list[Document]) -> dict[str, Any]:
    """The settings of each program that runs for good."""
    return {
        name: parse(container)
        for workload in workloads(documents)
        for name, container in all_containers(workload).items()
        if name in SETTINGS and "--cleanup" not in container["args"]
    }
