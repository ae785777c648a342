"""The template of router pods: what a user's template may say, and what the router cannot do without."""

from typing import Any

import msgspec
import pytest

from coil.crd.egress import Egress
from coil.egress.router_pod import (
    EGRESS_SELECTOR,
    RouterProgram,
    render_container,
    render_pod_template,
    router_labels,
    router_selector,
)

PROGRAM = RouterProgram(image="coil:1", port=5555)
DEFAULT: dict[str, Any] = render_container({}, "nat", PROGRAM)


def egress(**spec: Any) -> Egress:
    document = {"metadata": {"name": "nat", "namespace": "internet", "uid": "uid-1"}, "spec": spec}
    return msgspec.convert(document, Egress)


def test_a_container_out_of_nothing() -> None:
    assert DEFAULT == {
        "name": "egress",
        "image": "coil:1",
        "command": ["coil-egress-agent"],
        "args": ["--egress-port=5555"],
        "env": [
            {"name": "COIL_POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "COIL_EGRESS_NAME", "value": "nat"},
            {"name": "COIL_POD_ADDRESSES", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}},
        ],
        "ports": [
            {"name": "metrics", "containerPort": 8080, "protocol": "TCP"},
            {"name": "health", "containerPort": 8081, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "200Mi"}},
        "livenessProbe": {
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
            "httpGet": {"path": "/healthz", "port": "health", "scheme": "HTTP"},
        },
        "readinessProbe": {
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "httpGet": {"path": "/readyz", "port": "health", "scheme": "HTTP"},
        },
        "securityContext": {
            "runAsUser": 0,
            "runAsNonRoot": False,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "seccompProfile": {"type": "RuntimeDefault"},
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
    }


def rendered(**given: Any) -> dict[str, Any]:
    """The fields that differ from the container out of nothing."""
    container = render_container({"name": "egress", **given}, "nat", PROGRAM)
    return {field: value for field, value in container.items() if DEFAULT.get(field) != value}


@pytest.mark.parametrize(
    "given",
    [
        {"image": "mine:2", "imagePullPolicy": "Never"},
        {"args": ["--log-level=debug"]},
        {"resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"cpu": 4}}},
        {"volumeMounts": [{"name": "a", "mountPath": "/a"}]},
        {"readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}},
        {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}},
        {"securityContext": {"privileged": True}},
    ],
)
def test_the_users_fields_win(given: dict[str, Any]) -> None:
    assert rendered(**given) == given


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ({"requests": {"cpu": 2}}, {"cpu": 2, "memory": "200Mi"}),
        ({"requests": {"memory": "1Gi"}}, {"cpu": "100m", "memory": "1Gi"}),
        # The API server makes a request of it; with ours, it would refuse this one.
        ({"limits": {"memory": "64Mi"}}, {"cpu": "100m"}),
        ({"limits": {"cpu": "50m", "memory": "64Mi"}}, {}),
        ({"claims": [{"name": "card"}], "requests": None}, {"cpu": "100m", "memory": "200Mi"}),
    ],
)
def test_what_a_template_does_not_say_is_requested(given: dict[str, Any], requests: dict[str, Any]) -> None:
    container = render_container({"resources": given}, "nat", PROGRAM)
    assert container["resources"] == {**given, "requests": requests}


@pytest.mark.parametrize("name", ["cybozu/coil:2.9.1", "example.com/cybozu-go/coil:2.15.0@sha256:0", "cybozu/coil"])
def test_the_public_image_of_coil_v2_is_replaced(name: str) -> None:
    given = {"image": name, "command": ["coil-egress"], "args": ["--fou-port=5556", "--zap-stacktrace-level=panic"]}
    container = render_container(given, "nat", PROGRAM)
    assert container["image"] == PROGRAM.image
    assert (container["command"], container["args"]) == (given["command"], given["args"])
    assert "image" in given


@pytest.mark.parametrize(
    "name", ["coil:2.15.0", "example.com/mine/coil", "example.com/cybozu/coil/agent:1", "x/cybozu-coil"]
)
def test_an_image_of_the_users_own_is_kept(name: str) -> None:
    assert render_container({"image": name}, "nat", PROGRAM)["image"] == name


@pytest.mark.parametrize("command", ["coil-egress", "coil-egress-agent"])
def test_the_agent_has_our_arguments_by_both_of_its_names(command: str) -> None:
    container = render_container({"command": [command]}, "nat", PROGRAM)
    assert (container["command"], container["args"]) == ([command], ["--egress-port=5555"])


def test_another_command_has_no_arguments_of_ours() -> None:
    container = render_container({"command": ["sleep"]}, "nat", PROGRAM)
    assert container["command"] == ["sleep"]
    assert "args" not in container


def test_a_probe_that_has_only_numbers_gets_our_address_and_the_other_numbers() -> None:
    assert rendered(livenessProbe={"periodSeconds": 3}) == {
        "livenessProbe": {**DEFAULT["livenessProbe"], "periodSeconds": 3}
    }


def test_environment_and_ports_are_joined_and_ours_win() -> None:
    environment = [{"name": "A", "value": "$(COIL_EGRESS_NAME)"}, {"name": "COIL_EGRESS_NAME", "value": "other"}]
    ports = [{"containerPort": 8081}, {"name": "metrics", "containerPort": 1}, {"name": "x", "containerPort": 2}]
    container = render_container({"env": environment, "ports": ports}, "nat", PROGRAM)
    assert container["env"] == [*DEFAULT["env"], environment[0]], "ours first, so that others may refer to them"
    assert container["ports"] == [*DEFAULT["ports"], ports[2]]


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"readOnlyRootFilesystem": False}, {"readOnlyRootFilesystem": False}),
        ({"seccompProfile": {"type": "Unconfined"}}, {"seccompProfile": {"type": "Unconfined"}}),
        ({"capabilities": {"add": ["NET_RAW"]}}, {"capabilities": {"drop": ["ALL"], "add": ["NET_RAW", "NET_ADMIN"]}}),
        ({"capabilities": {"add": ["NET_ADMIN"], "drop": []}}, {"capabilities": {"drop": [], "add": ["NET_ADMIN"]}}),
        ({"capabilities": None}, {}),
    ],
)
def test_the_security_context_is_joined_field_by_field(given: dict[str, Any], changed: dict[str, Any]) -> None:
    container = render_container({"securityContext": given}, "nat", PROGRAM)
    assert container["securityContext"] == DEFAULT["securityContext"] | changed


def test_a_pod_without_a_template() -> None:
    assert render_pod_template(egress(), PROGRAM) == {
        "metadata": {"labels": router_labels("nat"), "annotations": {}},
        "spec": {"serviceAccountName": "coil-egress", "containers": [DEFAULT]},
    }


@pytest.mark.parametrize("template", [{}, {"metadata": {}, "spec": {}}, {"spec": {"containers": []}}, {"spec": None}])
def test_an_empty_template_is_none(template: dict[str, Any]) -> None:
    assert render_pod_template(egress(template=template), PROGRAM) == render_pod_template(egress(), PROGRAM)


def test_our_labels_and_account_win_and_the_rest_stays() -> None:
    labels = {"app.kubernetes.io/instance": "mine", "team": "net"}
    spec = {"serviceAccount": "other", "serviceAccountName": "other", "nodeSelector": {"a": "b"}, "newer": {"x": 1}}
    template = {"metadata": {"labels": labels, "annotations": {"a": "b"}}, "spec": spec}
    pod = render_pod_template(egress(template=template), PROGRAM)
    assert pod["metadata"] == {"labels": {"team": "net", **router_labels("nat")}, "annotations": {"a": "b"}}
    assert pod["spec"] == {
        "serviceAccountName": "coil-egress",
        "nodeSelector": {"a": "b"},
        "newer": {"x": 1},
        "containers": [DEFAULT],
    }


def test_the_routers_container_is_first_unless_it_is_placed() -> None:
    sidecar = {"name": "sidecar", "image": "x"}

    def names(*containers: dict[str, Any]) -> list[str]:
        pod = render_pod_template(egress(template={"spec": {"containers": list(containers)}}), PROGRAM)
        return [container["name"] for container in pod["spec"]["containers"]]

    assert names(sidecar) == ["egress", "sidecar"]
    assert names(sidecar, {"name": "egress"}) == ["sidecar", "egress"]


def test_selectors_are_written_as_kubernetes_does_it() -> None:
    assert router_selector("nat") == (
        "app.kubernetes.io/component=egress,app.kubernetes.io/instance=nat,app.kubernetes.io/name=coil"
    )
    assert EGRESS_SELECTOR == "app.kubernetes.io/component=egress,app.kubernetes.io/name=coil"
