"""Which privileges an Egress's template may not give its router pods."""

from typing import Any

import msgspec
import pytest

from coil.crd.egress import Egress
from coil.crd.egress_validation import validate_egress
from coil.crd.template_privilege import CAPABILITIES, FLAG


def faults(spec: Any, **options: bool) -> dict[str, str]:
    """Messages by field below the template's spec."""
    document = {"metadata": {"name": "nat"}, "spec": {"destinations": ["0.0.0.0/0"], "template": {"spec": spec}}}
    found = validate_egress(msgspec.convert(document, Egress), **options)
    return {error.path.removeprefix("spec.template.spec."): error.message for error in found}


def one(container: dict[str, Any], field: str = "containers") -> dict[str, Any]:
    return {field: [{"name": "egress"}, {"name": "side", **container}]}


REFUSED = [
    ({"hostPID": True}, "hostPID"),
    ({"hostIPC": True}, "hostIPC"),
    ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/"}}]}, "volumes[1].hostPath"),
    ({"volumes": [{"name": "b", "hostPath": {}}]}, "volumes[0].hostPath"),
    ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "securityContext.seccompProfile.type"),
    ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "securityContext.appArmorProfile.type"),
    ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "securityContext.seLinuxOptions.type"),
    ({"securityContext": {"seLinuxOptions": {"user": "root"}}}, "securityContext.seLinuxOptions.user"),
    ({"securityContext": {"seccompProfile": {"type": ["RuntimeDefault"]}}}, "securityContext.seccompProfile.type"),
    ({"securityContext": {"seLinuxOptions": {"type": ["container_t"]}}}, "securityContext.seLinuxOptions.type"),
    ({"securityContext": {"windowsOptions": {"hostProcess": True}}}, "securityContext.windowsOptions.hostProcess"),
]
OF_CONTAINERS = [
    ({"securityContext": {"privileged": True}}, "securityContext.privileged"),
    ({"securityContext": {"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}}}, "securityContext.capabilities.add[1]"),
    ({"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}}, "securityContext.capabilities.add[0]"),
    ({"securityContext": {"capabilities": {"add": ["ALL"]}}}, "securityContext.capabilities.add[0]"),
    ({"securityContext": {"capabilities": {"add": ["NET_RAW"]}}}, "securityContext.capabilities.add[0]"),
    ({"securityContext": {"procMount": "Unmasked"}}, "securityContext.procMount"),
    ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "securityContext.seccompProfile.type"),
    ({"securityContext": {"seLinuxOptions": {"role": "system_r"}}}, "securityContext.seLinuxOptions.role"),
    ({"securityContext": {"procMount": ["Default"]}}, "securityContext.procMount"),
    ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "securityContext.appArmorProfile.type"),
    ({"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]}, "ports[1].hostPort"),
    *(
        (probe, f"{path}.{action}.host")
        for action in ("httpGet", "tcpSocket")
        for handler in [{action: {"port": 80, "host": "127.0.0.1"}}]
        for probe, path in (
            ({"livenessProbe": handler}, "livenessProbe"),
            ({"readinessProbe": handler}, "readinessProbe"),
            ({"startupProbe": handler}, "startupProbe"),
            ({"lifecycle": {"postStart": handler}}, "lifecycle.postStart"),
            ({"lifecycle": {"preStop": handler}}, "lifecycle.preStop"),
        )
    ),
]


@pytest.mark.parametrize(("spec", "field"), REFUSED)
def test_what_a_pod_may_not_ask_for(spec: dict[str, Any], field: str) -> None:
    [(path, message)] = faults(spec).items()
    assert path == field
    assert FLAG in message
    assert faults(spec, privileged_templates=True) == {}


@pytest.mark.parametrize("kind", ["initContainers", "containers", "ephemeralContainers"])
@pytest.mark.parametrize(("container", "field"), OF_CONTAINERS)
def test_what_no_container_may_ask_for(kind: str, container: dict[str, Any], field: str) -> None:
    [(path, message)] = faults(one(container, kind)).items()
    assert path == f"{kind}[1].{field}"
    assert FLAG in message
    assert faults(one(container, kind), privileged_templates=True) == {}


@pytest.mark.parametrize(
    "spec",
    [
        {"hostPID": False, "hostIPC": None, "volumes": None, "containers": None, "securityContext": None},
        {"securityContext": {"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}], "runAsUser": 0}},
        {"securityContext": {"seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"}}},
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
        {"volumes": [{"name": "a", "configMap": {"name": "a"}}, {"name": "b", "hostPath": None}]},
        one({"securityContext": {"privileged": False, "capabilities": {"drop": ["ALL"], "add": sorted(CAPABILITIES)}}}),
        one({"securityContext": {"capabilities": {"add": ["CAP_NET_ADMIN"]}, "procMount": "Default"}}),
        one({"ports": [{"containerPort": 80, "hostPort": 0}]}),
        one({"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "a"}}}),
        one({"livenessProbe": {"httpGet": {"port": 80, "host": ""}}, "readinessProbe": {"tcpSocket": {"port": 80}}}),
        one({"startupProbe": {"grpc": {"port": 80}}, "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}}}),
        # The API server refuses what is none of its words.
        {"volumes": "x", "containers": {"a": 1}, "securityContext": 7},
        {"containers": ["x", {"securityContext": {"capabilities": {"add": "ALL"}}}]},
        one({"livenessProbe": 1, "readinessProbe": {"httpGet": "x"}, "lifecycle": {"preStop": []}}),
    ],
)
def test_what_a_router_pod_may_have(spec: dict[str, Any]) -> None:
    assert faults(spec) == {}


APPARMOR = "container.apparmor.security.beta.kubernetes.io/egress"
SECCOMP = "container.seccomp.security.alpha.kubernetes.io/side"
SECCOMP_OF_POD = "seccomp.security.alpha.kubernetes.io/pod"


def faults_of_annotations(annotations: Any, **options: bool) -> dict[str, str]:
    template = {"metadata": {"annotations": annotations}, "spec": {}}
    document = {"metadata": {"name": "nat"}, "spec": {"destinations": ["0.0.0.0/0"], "template": template}}
    found = validate_egress(msgspec.convert(document, Egress), **options)
    return {error.path.removeprefix("spec.template.metadata.annotations"): error.message for error in found}


@pytest.mark.parametrize("key", [APPARMOR, SECCOMP, SECCOMP_OF_POD])
@pytest.mark.parametrize("value", ["unconfined", "Unconfined", "localhost", "runtime/default "])
def test_no_annotation_gives_an_unconfined_profile(key: str, value: str) -> None:
    [(path, message)] = faults_of_annotations({"a": "unconfined", key: value}).items()
    assert path == f"[{key}]"
    assert FLAG in message
    assert faults_of_annotations({key: value}, privileged_templates=True) == {}


@pytest.mark.parametrize("key", [APPARMOR, SECCOMP, SECCOMP_OF_POD])
@pytest.mark.parametrize("value", ["", "runtime/default", "localhost/router"])
def test_an_annotation_may_name_a_profile(key: str, value: str) -> None:
    assert faults_of_annotations({key: value}) == {}


def test_host_network_is_refused_whoever_asks() -> None:
    """A router needs a network namespace of its own."""
    assert list(faults({"hostNetwork": True}, privileged_templates=True)) == ["hostNetwork"]
