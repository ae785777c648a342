"""Webhooks of Egresses on a real kube-apiserver that calls a real egress-controller, and the kind's own schema."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from integration.apiserver.egress_world import NAME, Document, EgressWorld, egress_document
from integration.apiserver.idle_crowd import await_crowd_dropped, idle_crowd, kinds_of_crowd
from integration.apiserver.spoilt_secret import spoil_certificates
from integration.cluster.command_line import Version
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import apply
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

CALLED = 'admission webhook "validate.egress.coil.cybozu.com" denied the request: '
BUDGET = "spec.podDisruptionBudget"
APPARMOR = "container.apparmor.security.beta.kubernetes.io/egress"
FIRST_WITH_APPARMOR_FIELD = Version(1, 30)


def with_host_path(path: str, image: str = "example.invalid/side:1") -> Document:
    containers = [{"name": "egress"}, {"name": "side", "image": image}]
    return {"spec": {"containers": containers, "volumes": [{"name": "data", "hostPath": {"path": path}}]}}


def with_container(**fields: Any) -> Document:
    return {"spec": {"containers": [{"name": "egress", **fields}]}}


class Door:
    """Egresses of a namespace, judged by one egress-controller. `old` and `privileged` were stored before it came."""

    def __init__(self, plane: ControlPlane) -> None:
        self.world = EgressWorld(plane)
        self.namespace = self.world.add_namespace()
        self.path = f"/apis/coil.cybozu.com/v2/namespaces/{self.namespace}/egresses"
        self.old = f"1{secrets.token_hex(3)}"
        self.world.apply_egress(self.namespace, self.old, destinations=["10.0.0.999/24"])
        self.privileged = f"privileged-{secrets.token_hex(3)}"
        self.world.apply_egress(self.namespace, self.privileged, template=with_host_path("/var/lib/data"))
        self.world.start_replica()

    def post(self, **spec: Any) -> tuple[int, Document]:
        """Create one in pretence: status and answer."""
        document = egress_document(self.namespace, **spec)
        status, body = self.world.plane.request("POST", f"{self.path}?dryRun=All", json.dumps(document).encode())
        return status, json.loads(body)

    def refusal(self, *arguments: str, document: Document | None = None) -> str:
        """What kubectl says when it is refused something."""
        with pytest.raises(KubectlError) as error:
            self.world.plane.kubectl(*arguments, f"--namespace={self.namespace}", stdin=json.dumps(document or {}))
        return str(error.value).partition("exit code 1: ")[2]


@pytest.fixture(scope="module")
def door(plane: ControlPlane) -> Iterator[Door]:
    door = Door(plane)
    yield door
    assert door.world.missing_rights() == []
    assert [line for line in door.world.replicas[0].lines() if line["level"] == "error"] == []
    door.world.close()


def causes(answer: Document) -> dict[str, str]:
    return {cause["field"]: cause["message"] for cause in answer["details"]["causes"]}


def test_a_refusal_as_kubectl_prints_it(door: Door) -> None:
    # Nothing that a rule of the CRD would refuse first.
    bad = egress_document(door.namespace, destinations=["10.0.0.0/33"], podDisruptionBudget={"maxUnavailable": "5"})
    assert door.refusal("create", "--filename=-", document=bad).splitlines() == [
        'The Egress "nat" is invalid: ',
        "* spec.destinations[0]: '10.0.0.0/33' is not a network in CIDR notation",
        "* spec.podDisruptionBudget.maxUnavailable: '5' must be a whole number, "
        "or a percentage of at most 100% such as 50%",
    ]


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"destinations": ["10.0.0.999/8"]}, "spec.destinations[0]", "is not a network in CIDR notation"),
        ({"strategy": {"rollingUpdate": {"maxSurge": -1}}}, "spec.strategy.rollingUpdate.maxSurge", "not be negative"),
        ({"template": {"metadata": {"labels": {"a": "x y"}}}}, "spec.template.metadata.labels[a]", "the value 'x y'"),
        (
            {"template": {"metadata": {"annotations": {"a b": "c"}}}},
            "spec.template.metadata.annotations",
            "the key 'a b'",
        ),
        ({"template": {"spec": {"hostNetwork": True}}}, "spec.template.spec.hostNetwork", "must not be true"),
        (
            {"template": {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}},
            "spec.template.spec.volumes[0].hostPath",
            "an admin allows it with --allow-privileged-templates",
        ),
        (
            {"template": with_container(securityContext={"privileged": True})},
            "spec.template.spec.containers[0].securityContext.privileged",
            "must not be true",
        ),
        (
            {"template": with_container(livenessProbe={"httpGet": {"port": 80, "host": "169.254.169.254"}})},
            "spec.template.spec.containers[0].livenessProbe.httpGet.host",
            "must not be given",
        ),
        (
            {"template": with_container(lifecycle={"preStop": {"tcpSocket": {"port": 22, "host": "127.0.0.1"}}})},
            "spec.template.spec.containers[0].lifecycle.preStop.tcpSocket.host",
            "must not be given",
        ),
        (
            {"template": {"metadata": {"annotations": {APPARMOR: "unconfined"}}}},
            f"spec.template.metadata.annotations[{APPARMOR}]",
            "'unconfined' must be runtime/default",
        ),
        ({"podDisruptionBudget": {"minAvailable": "101%"}}, f"{BUDGET}.minAvailable", "must be at most 100%"),
        ({"podDisruptionBudget": {"maxUnavailable": -1}}, f"{BUDGET}.maxUnavailable", "must not be negative"),
        ({"name": "1nat"}, "metadata.name", "as the name of a Service"),
    ],
)
def test_each_rule_names_its_field(door: Door, spec: dict[str, Any], field: str, message: str) -> None:
    status, answer = door.post(**spec)
    assert (status, answer["reason"]) == (422, "Invalid")
    assert answer["message"].startswith(CALLED)
    assert message in causes(answer)[field]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"destinations": []}, "spec.destinations"),
        ({"destinations": ["example.com"]}, "spec.destinations"),
        ({"replicas": 0}, "spec.replicas"),
        ({"strategy": {"type": "Never"}}, "spec.strategy.type"),
        ({"sessionAffinity": "Cookie"}, "spec.sessionAffinity"),
        ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}}, "timeoutSeconds"),
        ({"podDisruptionBudget": {"minAvailable": True}}, "spec.podDisruptionBudget.minAvailable"),
        ({"allowedNamespaces": {"matchLabels": {"team": "not one"}}}, "spec.allowedNamespaces.matchLabels.team"),
        (
            {"allowedNamespaces": {"matchExpressions": [{"key": "team", "operator": "In"}]}},
            "spec.allowedNamespaces.matchExpressions.values",
        ),
        ({"template": {"metadata": {"labels": {"a": 1}}}}, "spec.template.metadata.labels.a"),
        ({"template": {"spec": {"containers": [{"image": "x"}]}}}, "containers.name"),
        ({"template": {"spec": {"containers": [{"name": "egress", "image": 5}]}}}, "containers.image"),
        ({"template": {"spec": {"tolerations": "all"}}}, "spec.template.spec.tolerations"),
        (
            {"template": {"spec": {"containers": [{"name": "x", "resources": {"limits": {"cpu": "one"}}}]}}},
            "containers.resources.limits.cpu",
        ),
    ],
)
def test_what_the_schema_alone_refuses(door: Door, spec: dict[str, Any], field: str) -> None:
    status, answer = door.post(**spec)
    assert status == 422
    assert CALLED not in answer["message"]
    assert field in answer["message"].replace("[0]", "")


def test_the_smallest_egress_is_filled_in(door: Door) -> None:
    status, answer = door.post()
    assert status == 201
    assert answer["spec"] == {
        "destinations": ["0.0.0.0/0", "::/0"],
        "replicas": 1,
        "sessionAffinity": "ClientIP",
        "fouSourcePortAuto": False,
    }


def test_a_new_template_without_containers_gets_the_routers(door: Door) -> None:
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    templates: list[Document] = [{}, {"metadata": {}}, {"spec": {}}, {"spec": {"affinity": affinity}}]
    for template in templates:
        status, answer = door.post(template=template)
        assert status == 201, answer
        spec = answer["spec"]["template"]["spec"]
        assert spec.pop("containers") == [{"name": "egress"}]
        assert spec == template.get("spec", {})


def test_a_template_keeps_what_the_schema_does_not_know(door: Door) -> None:
    container = {
        "name": "egress",
        "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
        "newer": {"a": [1, {"b": None}]},
    }
    spec = {"containers": [container], "newerStill": True}
    status, answer = door.post(template={"spec": spec, "metadata": {"labels": {"a": "b"}}})
    assert (status, answer["spec"]["template"]["spec"]) == (201, spec)


def test_one_from_before_can_be_labelled_scaled_mended_and_deleted_but_not_made_worse(door: Door) -> None:
    kubectl, old = door.world.kubectl, door.old
    kubectl(door.namespace, "label", "egress", old, "team=network")
    kubectl(door.namespace, "scale", "egress", old, "--replicas=2")
    worse = json.dumps({"spec": {"destinations": ["10.0.0.999/24", "10.0.0.998/24"]}})
    said = door.refusal("patch", "egress", old, "--type=merge", f"--patch={worse}")
    assert said.splitlines() == [
        f"The Egress \"{old}\" is invalid: spec.destinations[1]: '10.0.0.998/24' is not a network in CIDR notation"
    ]
    mended = json.dumps({"spec": {"destinations": ["10.0.0.99/24"]}})
    kubectl(door.namespace, "patch", "egress", old, "--type=merge", f"--patch={mended}")
    kubectl(door.namespace, "delete", "egress", old, "--timeout=180s")


def test_what_is_made_of_an_annotation_is_why_it_is_refused(door: Door) -> None:
    """The API server gives the container no profile, whoever creates the pod."""
    door.world.kubectl(door.namespace, "create", "serviceaccount", "default")
    plane, path = door.world.plane, f"/api/v1/namespaces/{door.namespace}/pods"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "annotated", "annotations": {APPARMOR: "unconfined"}},
        "spec": {"containers": [{"name": "egress", "image": "example.invalid/coil:test"}]},
    }
    status, body = plane.request("POST", f"{path}?dryRun=All", json.dumps(pod).encode())
    assert status == 201, body
    context = json.loads(body)["spec"]["containers"][0].get("securityContext", {})
    if plane.version >= FIRST_WITH_APPARMOR_FIELD:
        assert context["appArmorProfile"] == {"type": "Unconfined"}


def test_a_template_with_privileges_from_before_is_left_alone_or_mended_as_a_whole(door: Door) -> None:
    kubectl, old = door.world.kubectl, door.privileged
    kubectl(door.namespace, "label", "egress", old, "team=network")
    kubectl(door.namespace, "scale", "egress", old, "--replicas=2")
    field = "spec.template.spec.volumes[0].hostPath"
    for worse in (with_host_path("/"), with_host_path("/var/lib/data", image="example.invalid/evil:1")):
        patch = json.dumps({"spec": {"template": worse}})
        assert field in door.refusal("patch", "egress", old, "--type=merge", f"--patch={patch}")
    mended = json.dumps({"spec": {"template": {"spec": {"volumes": []}}}})
    kubectl(door.namespace, "patch", "egress", old, "--type=merge", f"--patch={mended}")


def test_the_definition_is_applied_again_and_leaves_room_for_the_annotation(plane: ControlPlane) -> None:
    definition = json.loads(plane.kubectl("get", "crd", "egresses.coil.cybozu.com", "--output=json"))
    annotation = definition["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
    assert len(annotation.encode()) < 256 * 1024 / 3


def test_the_columns_of_an_egress(door: Door) -> None:
    apply(door.world.plane, egress_document(door.namespace, "shown", replicas=3))
    header, line = door.world.kubectl(door.namespace, "get", "egress", "shown").splitlines()
    assert header.split() == ["NAME", "REPLICAS", "CURRENT", "DESTINATIONS", "AGE"]
    assert line.split()[0:2] == ["shown", "3"]
    assert '["0.0.0.0/0","::/0"]' in line


@kinds_of_crowd
def test_idle_connections_do_not_silence_admission(door: Door, version: int, tls: bool) -> None:
    world = door.world
    replica = world.start_replica(everywhere=True)
    try:
        # The crowd is there first: a connection that the API server had open already would be in nobody's way.
        replica.service.crash()
        wait_until(replica.is_ready, what="the replica is ready")
        with idle_crowd(str(world.plane.address), replica.webhook_port, version=version, tls=tls):
            # The first call may go by a connection to the process before.
            statuses = [door.post(destinations=["10.0.0.0/8"])[0] for _ in range(3)]
            assert 201 in statuses, "the API server gets no answer"
            status, answer = door.post(destinations=["10.0.0.999/24"])
            assert (status, answer["reason"]) == (422, "Invalid")
            await_crowd_dropped(replica.metrics)
    finally:
        world.stop_replica(replica)
        world.replicas[0].restore()


def test_a_spoilt_secret_is_mended(door: Door) -> None:
    spoil_certificates(door.world.plane, f"{NAME}-webhook")
    wait_until(lambda: door.post()[0] == 201, what="an Egress that passes")
    assert door.post(destinations=["10.0.0.0/33"])[0] == 422
