"""The template of an Egress's router pods: the user's, with what a router needs put into it, the labels by which
everything of one Egress is found, and the container in which `coil-egress-agent` runs.

A template may have a container named `egress`; its fields win, but for what the router cannot do without:
* the environment variables `COIL_*` that tell the agent who it is; others of the template stay;
* the ports named `metrics` and `health`; others of the template stay;
* the capability NET_ADMIN, unless the template asks for a privileged container.
Image, command, arguments, requests, probes and each field of the security context are defaults. A probe that only has
numbers gets the agent's address; one with an action of its own is left alone.

Templates of Coil v2 work as they are: its public image, which has another program, is replaced; the agent has the name
of that program as well, and understands its arguments (`coil.runtime.former_flag`).

Why no more than NET_ADMIN: links, addresses, routes, rules, FOU ports and nftables of the pod's own network namespace
are all behind it. It counts for user 0 only, because Kubernetes gives a container no ambient capabilities. Sysctls are
read-only in such a container; coild writes them when the pod is born.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coil.crd.egress import Egress
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_INSTANCE, LABEL_APP_NAME

EGRESS_SELECTOR = f"{LABEL_APP_COMPONENT}={COMPONENT_EGRESS},{LABEL_APP_NAME}={APP_NAME}"
"""What belongs to any Egress, as a label selector."""


def router_labels(egress_name: str) -> dict[str, str]:
    """Of the Deployment, its pods, the Service and the disruption budget of the Egress of that name."""
    return {
        LABEL_APP_NAME: APP_NAME,
        LABEL_APP_COMPONENT: COMPONENT_EGRESS,
        LABEL_APP_INSTANCE: egress_name,
    }


def router_selector(egress_name: str) -> str:
    """The same as a label selector, sorted as Kubernetes writes it: the scale subresource shows it."""
    return ",".join(f"{label}={value}" for label, value in sorted(router_labels(egress_name).items()))


Document = dict[str, Any]

ROUTER_CONTAINER = "egress"
AGENT_COMMAND = "coil-egress-agent"
FORMER_COMMAND: Final = "coil-egress"
"""What the agent is called in Coil v2, and in the image as well."""
_FORMER_IMAGES: Final = (["cybozu", "coil"], ["cybozu-go", "coil"])
"""The last parts of the names of Coil v2's public images."""
METRICS_PORT = 8080
HEALTH_PORT = 8081
CAPABILITY = "NET_ADMIN"

_PORTS: list[Document] = [
    {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
    {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
]
_ACTIONS: Final = ("exec", "httpGet", "tcpSocket", "grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterProgram:
    """`image` has the agent; `port` is where the tunnels are received."""

    image: str
    port: int


def render_container(given: Mapping[str, Any], egress_name: str, program: RouterProgram) -> Document:
    """The container, from the template's one of that name, which may be empty."""
    defaults: Document = {
        "image": program.image,
        "command": [AGENT_COMMAND],
        "args": [f"--egress-port={program.port}"],
    }
    given = {field: value for field, value in given.items() if value is not None}
    if is_former_image(given.get("image", "")):
        del given["image"]
    if given.get("command", []) not in ([], [AGENT_COMMAND], [FORMER_COMMAND]):
        # Another program has other arguments.
        del defaults["args"]
    return {
        **defaults,
        **given,
        "name": ROUTER_CONTAINER,
        "env": [*_environment(egress_name), *_others(given.get("env"), _environment(egress_name), "name")],
        "ports": [*_PORTS, *_others(given.get("ports"), _PORTS, "name", "containerPort")],
        "resources": _resources(given.get("resources") or {}),
        "livenessProbe": _probe(given.get("livenessProbe"), "/healthz", _LIVENESS),
        "readinessProbe": _probe(given.get("readinessProbe"), "/readyz", _READINESS),
        "securityContext": _security(given.get("securityContext") or {}),
    }


def is_former_image(image: str) -> bool:
    """Whether it is one of Coil v2's, of any version and from any registry."""
    path, _, name = image.partition("@")[0].rpartition("/")
    return [path.rpartition("/")[2], name.partition(":")[0]] in _FORMER_IMAGES


def _environment(egress_name: str) -> list[Document]:
    return [
        {"name": "COIL_POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "COIL_EGRESS_NAME", "value": egress_name},
        {"name": "COIL_POD_ADDRESSES", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}},
    ]


_REQUESTS: Final = {"cpu": "100m", "memory": "200Mi"}


def _resources(given: Mapping[str, Any]) -> Document:
    """With requests for what the template neither requests nor limits: of a limit, the API server makes the request,
    and it would refuse a limit below ours.
    """
    limits = given.get("limits") or {}
    missing = {name: amount for name, amount in _REQUESTS.items() if name not in limits}
    return {**given, "requests": {**missing, **(given.get("requests") or {})}}


_LIVENESS: Final[Document] = {
    "initialDelaySeconds": 10,
    "periodSeconds": 10,
    "timeoutSeconds": 5,
    "failureThreshold": 6,
}
"""With Kubernetes' defaults, an agent that has just started on a busy node is killed after three answers that take more
than a second, and with it the connections of all its clients.
"""
_READINESS: Final[Document] = {"periodSeconds": 2, "timeoutSeconds": 5}


def _probe(given: Mapping[str, Any] | None, path: str, numbers: Document) -> Document:
    """The template's, if it says how to probe; otherwise ours, with what it says of the numbers."""
    probe = dict(given or {})
    if any(probe.get(action) for action in _ACTIONS):
        return probe
    return {**numbers, **probe, "httpGet": {"path": path, "port": "health", "scheme": "HTTP"}}


def _security(given: Mapping[str, Any]) -> Document:
    if given.get("privileged"):
        # Then capabilities do not matter, and our other defaults would contradict it.
        return dict(given)
    capabilities = given.get("capabilities") or {}
    added = [name for name in capabilities.get("add") or [] if name != CAPABILITY]
    return {
        "runAsUser": 0,
        "runAsNonRoot": False,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "RuntimeDefault"},
        **given,
        "capabilities": {"drop": ["ALL"], **capabilities, "add": [*added, CAPABILITY]},
    }


def _others(given: Sequence[Mapping[str, Any]] | None, ours: Sequence[Document], *keys: str) -> list[Document]:
    """The given entries that have no key in common with ours."""
    taken = {(key, entry[key]) for entry in ours for key in keys}
    return [dict(entry) for entry in given or () if not taken & {(key, entry.get(key)) for key in keys}]


ROUTER_ACCOUNT = "coil-egress"
"""The ServiceAccount of router pods, one in each namespace that has Egresses."""


def render_pod_template(egress: Egress, program: RouterProgram) -> Document:
    """A PodTemplateSpec. Our labels and account win; the router's container is first unless the template places it."""
    template = egress.spec.template or {}
    metadata: Mapping[str, Any] = template.get("metadata") or {}
    spec: Document = dict(template.get("spec") or {})
    # Its older name, which would contradict the other.
    spec.pop("serviceAccount", None)
    return {
        "metadata": {
            "labels": {**(metadata.get("labels") or {}), **router_labels(egress.metadata.name)},
            "annotations": dict(metadata.get("annotations") or {}),
        },
        "spec": {
            **spec,
            "serviceAccountName": ROUTER_ACCOUNT,
            "containers": _render_containers(spec.get("containers") or [], egress.metadata.name, program),
        },
    }


def _render_containers(given: list[Document], egress_name: str, program: RouterProgram) -> list[Document]:
    if all(container.get("name") != ROUTER_CONTAINER for container in given):
        given = [{"name": ROUTER_CONTAINER}, *given]
    return [
        render_container(container, egress_name, program) if container.get("name") == ROUTER_CONTAINER else container
        for container in given
    ]
