"""The egress-controller against a real API server and the real controllers behind it: Egresses become router pods."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from integration.apiserver.egress_world import (
    IMAGE,
    NAME,
    STOP_TIMEOUT,
    Document,
    EgressReplica,
    EgressWorld,
    egress_document,
    foreign_kind,
)
from integration.apiserver.test_rbac import COIL, access, answers
from integration.cluster.control_plane import Controllers, ControlPlane, KubectlError
from integration.deployment import (
    CLUSTER_NETWORKS_FLAG,
    CLUSTER_NETWORKS_PATH,
    apply,
    apply_chart,
    apply_cluster_networks,
    former_router_binding,
    remove_webhooks,
)
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

RESYNC = "--resync-interval=1s"
LABELS = {
    "app.kubernetes.io/name": "coil",
    "app.kubernetes.io/component": "egress",
    "app.kubernetes.io/instance": "nat",
}
# Stored before there was a webhook, and good enough for the schema.
OLD: dict[str, Any] = {"destinations": ["10.0.0.999/24", "192.0.2.0/24"]}
PRIVILEGED: dict[str, Any] = {
    "spec": {"containers": [{"name": "egress"}], "volumes": [{"name": "root", "hostPath": {"path": "/"}}]}
}


@pytest.fixture(scope="module")
def world() -> Iterator[EgressWorld]:
    """With the controllers of a whole cluster, and one egress-controller, which compares everything each second."""
    with ControlPlane.start(controllers=Controllers.RUNNING) as plane:
        apply_chart(plane)
        apply_cluster_networks(plane)
        world = EgressWorld(plane)
        try:
            world.apply_egress(world.add_namespace(), **OLD)
            world.apply_egress(world.add_namespace(), template=PRIVILEGED)
            world.start_replica(RESYNC, CLUSTER_NETWORKS_FLAG, "--cluster-cidr=198.51.100.0/24")
            yield world
            assert world.missing_rights() == []
            assert [line for line in world.replicas[0].lines() if "exception" in line] == []
        finally:
            world.close()


@pytest.fixture
def replica(world: EgressWorld) -> EgressReplica:
    replica = world.replicas[0]
    replica.service.ensure_running()
    return replica


@pytest.fixture
def namespace(world: EgressWorld, replica: EgressReplica) -> Iterator[str]:
    name = world.add_namespace()
    yield name
    world.kubectl(name, "delete", "egress", "--all")


def container_of(deployment: Document, name: str = "egress") -> Document:
    containers: list[Document] = deployment["spec"]["template"]["spec"]["containers"]
    return next(container for container in containers if container["name"] == name)


def router_pods(world: EgressWorld, namespace: str) -> list[Document]:
    selector = quote(",".join(f"{key}={value}" for key, value in LABELS.items()))
    pods: list[Document] = world.plane.read(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def patch(world: EgressWorld, namespace: str, **spec: Any) -> None:
    """A merge patch of the Egress's spec."""
    world.kubectl(namespace, "patch", "egress", "nat", "--type=merge", f"--patch={json.dumps({'spec': spec})}")


def await_resyncs(replica: EgressReplica, count: int) -> None:
    """So many comparisons from now on have been made, and the one before the last is done with."""
    wanted = replica.resyncs() + count
    wait_until(lambda: replica.resyncs() >= wanted, what="further comparisons")


def becomes(read: Callable[[], Any], wanted: Any, *, what: str) -> None:
    wait_until(lambda: read() == wanted, what=what)


def test_an_egress_becomes_router_pods_behind_a_service(world: EgressWorld, namespace: str) -> None:
    world.apply_egress(namespace, replicas=2)
    becomes(lambda: len(router_pods(world, namespace)), 2, what="router pods")
    pod = router_pods(world, namespace)[0]
    assert pod["spec"]["serviceAccountName"] == "coil-egress"
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["command"]) == (IMAGE, ["coil-egress-agent"])
    assert container["securityContext"] == {
        "runAsUser": 0,
        "runAsNonRoot": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"metrics": 8080, "health": 8081}
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "200Mi"}}
    service = world.await_object("service", namespace)["spec"]
    assert service["ports"] == [{"name": "fou", "port": 5555, "targetPort": 5555, "protocol": "UDP"}]
    assert (service["selector"], service["sessionAffinity"], service["type"]) == (LABELS, "ClientIP", "ClusterIP")
    assert service["ipFamilies"] == ["IPv4", "IPv6"], "the cluster under test has both"
    egress = world.get("egress", namespace)
    for kind in ("deployment", "service"):
        (owner,) = world.get(kind, namespace)["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (egress["metadata"]["uid"], True)
    assert world.find("poddisruptionbudget", namespace) is None
    asked = [
        access("watch", COIL, "egressclientslices", namespace=namespace),
        access("watch", COIL, "egressclientslices"),
        access("watch", "", "pods", namespace=namespace),
    ]

    def router_may() -> list[bool]:
        """Whoever has the account of the tenant's namespace."""
        return answers(world.plane, "coil-egress", *asked, home=namespace)

    becomes(router_may, [True, False, False], what="router pods may watch slices of their namespace, and nothing else")


def test_scaling_by_hand_and_by_an_autoscaler(world: EgressWorld, namespace: str) -> None:
    world.apply_egress(namespace)
    becomes(lambda: len(router_pods(world, namespace)), 1, what="router pods")
    world.kubectl(namespace, "scale", "egress", "nat", "--replicas=3")
    becomes(lambda: len(router_pods(world, namespace)), 3, what="router pods")
    becomes(lambda: world.get("egress", namespace)["status"].get("replicas"), 3, what="the status")
    selector = world.get("egress", namespace)["status"]["selector"]
    assert (
        len(json.loads(world.kubectl(namespace, "get", "pods", f"--selector={selector}", "-o", "json"))["items"]) == 3
    )
    reference = {"apiVersion": "coil.cybozu.com/v2", "kind": "Egress", "name": "nat"}
    autoscaler = {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "nat", "namespace": namespace},
        "spec": {"scaleTargetRef": reference, "minReplicas": 5, "maxReplicas": 6, "targetCPUUtilizationPercentage": 50},
    }
    # Below its minimum it scales without any metrics.
    apply(world.plane, autoscaler)
    becomes(lambda: world.get("egress", namespace)["spec"]["replicas"], 5, what="the autoscaler's wish")
    becomes(lambda: len(router_pods(world, namespace)), 5, what="router pods")
    with pytest.raises(KubectlError, match=r"spec\.replicas"):
        world.kubectl(namespace, "scale", "egress", "nat", "--replicas=0")


def test_a_rollout_restart_and_what_others_add_survive(
    world: EgressWorld, replica: EgressReplica, namespace: str
) -> None:
    template = {"metadata": {"annotations": {"a": "1", "b": "2"}, "labels": {"team": "net", **LABELS, "x": "y"}}}
    template["metadata"]["labels"]["app.kubernetes.io/instance"] = "mine"
    world.apply_egress(namespace, template=template)
    world.await_object("deployment", namespace)
    world.kubectl(namespace, "rollout", "restart", "deployment/nat")
    world.kubectl(namespace, "label", "deployment/nat", "service/nat", "owner=somebody")
    limit = json.dumps({"spec": {"revisionHistoryLimit": 2}})
    world.kubectl(namespace, "patch", "deployment", "nat", f"--patch={limit}")
    patch(world, namespace, template={"metadata": {"annotations": {"a": "3", "b": None}, "labels": {"x": None}}})

    def pod_metadata() -> Document:
        found: Document = world.get("deployment", namespace)["spec"]["template"]["metadata"]
        return found

    becomes(lambda: pod_metadata()["annotations"].get("a"), "3", what="the template's annotation")
    await_resyncs(replica, 2)
    assert set(pod_metadata()["annotations"]) == {"a", "kubectl.kubernetes.io/restartedAt"}
    assert pod_metadata()["labels"] == {"team": "net", **LABELS}
    deployment = world.get("deployment", namespace)
    assert deployment["spec"]["revisionHistoryLimit"] == 2
    for kind in ("deployment", "service"):
        assert world.get(kind, namespace)["metadata"]["labels"]["owner"] == "somebody"


def test_what_is_ours_is_put_right_again(world: EgressWorld, namespace: str) -> None:
    world.apply_egress(namespace, replicas=2)
    world.await_object("deployment", namespace)
    world.kubectl(namespace, "scale", "deployment", "nat", "--replicas=7")
    world.kubectl(namespace, "set", "image", "deployment/nat", "egress=example.invalid/other")
    world.kubectl(namespace, "label", "service/nat", "app.kubernetes.io/name-")
    world.await_object("service", namespace)
    port = json.dumps([{"op": "replace", "path": "/spec/ports/0/port", "value": 1}])
    world.kubectl(namespace, "patch", "service", "nat", "--type=json", f"--patch={port}")
    becomes(lambda: world.get("deployment", namespace)["spec"]["replicas"], 2, what="replicas")
    becomes(lambda: container_of(world.get("deployment", namespace))["image"], IMAGE, what="the image")
    becomes(lambda: world.get("service", namespace)["spec"]["ports"][0]["port"], 5555, what="the port")
    becomes(
        lambda: LABELS.items() <= world.get("service", namespace)["metadata"]["labels"].items(), True, what="labels"
    )
    world.kubectl(namespace, "delete", "deployment/nat", "service/nat", "serviceaccount/coil-egress")
    becomes(lambda: len(router_pods(world, namespace)), 2, what="router pods of a new Deployment")
    world.await_object("service", namespace)
    world.await_object("serviceaccount", namespace, "coil-egress")


def test_a_disruption_budget_comes_changes_and_goes(world: EgressWorld, namespace: str) -> None:
    def budget() -> Document | None:
        found = world.find("poddisruptionbudget", namespace)
        return None if found is None else {key: value for key, value in found["spec"].items() if key != "selector"}

    world.apply_egress(namespace, podDisruptionBudget={"maxUnavailable": 1})
    becomes(budget, {"maxUnavailable": 1}, what="the budget")
    assert world.get("poddisruptionbudget", namespace)["spec"]["selector"] == {"matchLabels": LABELS}
    world.apply_egress(namespace, podDisruptionBudget={"minAvailable": "50%"})
    becomes(budget, {"minAvailable": "50%"}, what="the other bound")
    world.apply_egress(namespace)
    becomes(budget, None, what="no budget")


def test_session_affinity_is_switched_and_configured(world: EgressWorld, namespace: str) -> None:
    def affinity() -> tuple[str, int | None]:
        spec = world.get("service", namespace)["spec"]
        return spec["sessionAffinity"], spec.get("sessionAffinityConfig", {}).get("clientIP", {}).get("timeoutSeconds")

    world.apply_egress(namespace, sessionAffinityConfig={"clientIP": {"timeoutSeconds": 43200}})
    addresses = world.await_object("service", namespace)["spec"]["clusterIPs"]
    assert affinity() == ("ClientIP", 43200)
    patch(world, namespace, sessionAffinity="None")
    becomes(affinity, ("None", None), what="no affinity, though a timeout is still asked for")
    world.apply_egress(namespace, sessionAffinity="ClientIP")
    becomes(affinity, ("ClientIP", 10800), what="the API server's own timeout")
    assert world.get("service", namespace)["spec"]["clusterIPs"] == addresses


def test_the_strategy_is_switched_and_switched_off(world: EgressWorld, namespace: str) -> None:
    def strategy() -> Document:
        found: Document = world.get("deployment", namespace)["spec"]["strategy"]
        return found

    quarter = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    world.apply_egress(namespace)
    world.await_object("deployment", namespace)
    assert strategy() == quarter
    world.apply_egress(namespace, strategy={"type": "Recreate"})
    becomes(strategy, {"type": "Recreate"}, what="Recreate")
    world.apply_egress(namespace, strategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    becomes(lambda: strategy().get("rollingUpdate"), {"maxSurge": 1, "maxUnavailable": 0}, what="one more")
    world.apply_egress(namespace)
    becomes(strategy, quarter, what="the API server's own")


def test_accounts_and_bindings_come_with_the_first_egress_and_go_with_the_last(
    world: EgressWorld, namespace: str
) -> None:
    other = world.add_namespace()
    world.kubectl(other, "create", "serviceaccount", "coil-egress")
    for where, name in ((namespace, "nat"), (namespace, "nat2"), (other, "nat")):
        world.apply_egress(where, name)
    for where in (namespace, other):
        world.await_object("serviceaccount", where, "coil-egress")
        world.await_object("rolebinding", where, "coil-egress")
        # What it allows, it allows there.
        router = f"--as=system:serviceaccount:{where}:coil-egress"
        wait_until(
            lambda where=where, router=router: may_watch(world, router, where),  # type: ignore[misc]
            what="router pods may watch what is about them",
        )
        assert not any(may_watch(world, router, elsewhere) for elsewhere in ({namespace, other} - {where}))
    world.kubectl(namespace, "delete", "egress", "nat")
    world.kubectl(other, "delete", "egress", "nat")
    becomes(lambda: world.find("rolebinding", other, "coil-egress"), None, what="no binding")
    world.get("serviceaccount", namespace, "coil-egress")
    world.get("rolebinding", namespace, "coil-egress")
    world.kubectl(namespace, "delete", "egress", "nat2")
    becomes(lambda: world.find("serviceaccount", namespace, "coil-egress"), None, what="no account")
    becomes(lambda: world.find("rolebinding", namespace, "coil-egress"), None, what="no binding")
    world.get("serviceaccount", other, "coil-egress")


def may_watch(world: EgressWorld, account: str, namespace: str) -> bool:
    """What is about router pods there; kubectl's exit code says so."""
    try:
        for kind in ("egresses", "egressclientslices"):
            world.kubectl(namespace, "auth", "can-i", "watch", f"{kind}.coil.cybozu.com", account)
    except KubectlError:
        return False
    return True


def test_subjects_of_the_binding_for_former_router_pods_follow_the_namespaces(
    world: EgressWorld, namespace: str
) -> None:
    other = world.add_namespace()
    admin = {"kind": "User", "name": "somebody", "apiGroup": "rbac.authorization.k8s.io"}
    apply(world.plane, {**former_router_binding(), "subjects": [admin]})
    try:
        for where in (namespace, other):
            world.apply_egress(where)
        wait_until(lambda: {namespace, other} <= world.subjects(), what="subjects")
        world.kubectl(other, "delete", "egress", "nat")
        wait_until(lambda: other not in world.subjects(), what="one subject less")
        assert namespace in world.subjects()
        world.kubectl(namespace, "delete", "egress", "nat")
        wait_until(lambda: namespace not in world.subjects(), what="no subject")
        binding = json.loads(world.plane.kubectl("get", "clusterrolebinding", "coil-egress", "--output=json"))
        assert admin in binding["subjects"]
    finally:
        world.plane.kubectl("delete", "clusterrolebinding", "coil-egress")


def test_what_is_not_ours_is_not_touched(world: EgressWorld, namespace: str) -> None:
    world.kubectl(namespace, "create", "deployment", "nat", "--image=example.invalid/other")
    world.kubectl(namespace, "create", "service", "clusterip", "nat", "--tcp=80")
    before = {kind: world.get(kind, namespace)["spec"] for kind in ("deployment", "service")}
    world.apply_egress(namespace, podDisruptionBudget={"maxUnavailable": 1})
    wait_until(
        lambda: {"DeploymentNameTaken", "ServiceNameTaken"} <= world.events(namespace).keys(),
        what="Events that tell it",
    )
    world.await_object("poddisruptionbudget", namespace)
    assert {kind: world.get(kind, namespace)["spec"] for kind in before} == before
    becomes(lambda: world.get("egress", namespace).get("status", {}).get("replicas"), 0, what="the status")
    world.kubectl(namespace, "delete", "deployment/nat", "service/nat")
    becomes(lambda: len(router_pods(world, namespace)), 1, what="a router pod")
    assert world.await_object("service", namespace)["spec"]["sessionAffinity"] == "ClientIP"


def test_a_refused_template_is_told_and_stops_nothing_else(world: EgressWorld, namespace: str) -> None:
    other = world.add_namespace()
    spec = {"containers": [{"name": "egress"}, {"name": "Not_A_Name", "image": "x"}]}
    world.apply_egress(namespace, template={"spec": spec})
    world.apply_egress(other)
    wait_until(lambda: "DeploymentRefused" in world.events(namespace), what="an Event that tells it")
    message = world.events(namespace)["DeploymentRefused"]
    assert "spec.template.spec.containers[1].name: Invalid value" in message
    world.await_object("service", namespace)
    world.await_object("deployment", other)
    world.apply_egress(namespace, template={"spec": {"containers": spec["containers"][:1]}})
    becomes(lambda: len(router_pods(world, namespace)), 1, what="a router pod, once it is mended")
    # What runs is left running by a change for the worse.
    world.apply_egress(namespace, template={"spec": spec})
    wait_until(lambda: world.get("egress", namespace)["status"]["replicas"] == 1, what="the status")
    assert len(router_pods(world, namespace)) == 1


def test_an_egress_from_before_admission_is_carried_out_as_far_as_it_goes(world: EgressWorld) -> None:
    old = f"{world.name}-0"
    wait_until(lambda: "EgressInvalid" in world.events(old), what="an Event that tells it")
    message = "spec.destinations[0]: '10.0.0.999/24' is not a network in CIDR notation"
    assert world.events(old)["EgressInvalid"] == message
    world.await_object("deployment", old)


def test_privileges_from_before_admission_make_no_router_pods(world: EgressWorld, replica: EgressReplica) -> None:
    old = f"{world.name}-1"
    wait_until(lambda: "TemplateNotAllowed" in world.events(old), what="an Event that tells it")
    assert "spec.template.spec.volumes[0].hostPath" in world.events(old)["TemplateNotAllowed"]
    world.await_object("service", old)
    await_resyncs(replica, 2)
    assert world.find("deployment", old) is None
    patch(world, old, template={"spec": {"volumes": None}})
    becomes(lambda: len(router_pods(world, old)), 1, what="a router pod, once it is mended")


def test_a_deployment_does_not_get_privileges_past_admission(world: EgressWorld, namespace: str) -> None:
    world.apply_egress(namespace)
    becomes(lambda: len(router_pods(world, namespace)), 1, what="a router pod")
    before = world.get("deployment", namespace)["spec"]["template"]
    remove_webhooks(world.plane, of=NAME)
    try:
        patch(world, namespace, template=PRIVILEGED, replicas=2)
    finally:
        world.replicas[0].restore()
    wait_until(lambda: "TemplateNotAllowed" in world.events(namespace), what="an Event that tells it")
    becomes(lambda: len(router_pods(world, namespace)), 2, what="as many router pods as it says")
    assert world.get("deployment", namespace)["spec"]["template"] == before


def test_nothing_is_written_when_nothing_has_changed(
    world: EgressWorld, replica: EgressReplica, namespace: str
) -> None:
    resources = {"requests": {"cpu": 1, "memory": "0.5Gi"}, "limits": {"cpu": "2000m", "memory": "1024Mi"}}
    # Quantities in no canonical form, a field that the API server does not know, fields that it fills in.
    container = {"name": "egress", "resources": resources, "newerThanTheServer": {"a": 1}}
    sidecar = {"name": "sidecar", "image": "x", "env": [{"name": "A"}], "ports": [{"containerPort": 1}]}
    world.apply_egress(
        namespace,
        template={
            "spec": {
                "containers": [sidecar, container],
                "volumes": [{"name": "v"}],
                "tolerations": [{"operator": "Exists"}],
            }
        },
        strategy={"type": "Recreate"},
        podDisruptionBudget={"minAvailable": "10%"},
    )
    becomes(lambda: world.get("egress", namespace).get("status", {}).get("replicas"), 1, what="the status")
    world.await_object("poddisruptionbudget", namespace)
    # The Deployment's own controller writes its status.
    world.kubectl(namespace, "wait", "deployment/nat", "--for=jsonpath={.status.unavailableReplicas}=1")
    await_resyncs(replica, 2)
    before = world.versions(namespace)
    await_resyncs(replica, 5)
    assert world.versions(namespace) == before
    replica.service.crash()
    replica.service.wait_ready()
    await_resyncs(replica, 2)
    assert world.versions(namespace) == before, "nor does a new leader write"
    deployment = world.get("deployment", namespace)
    assert container_of(deployment)["resources"]["requests"] == {"cpu": "1", "memory": "512Mi"}
    stored = world.get("egress", namespace)["spec"]["template"]["spec"]["containers"]
    assert stored[1]["newerThanTheServer"] == {"a": 1}, "kept for a server that will know it"


@pytest.mark.slow
def test_a_killed_controller_continues_where_it_was(world: EgressWorld, replica: EgressReplica, namespace: str) -> None:
    names = [f"nat{number}" for number in range(20)]
    created = len(replica.logged("created"))
    apply(world.plane, *(egress_document(namespace, name) for name in names))
    wait_until(lambda: len(replica.logged("created")) > created + 5, what="some of the work")
    replica.service.crash()
    for name in names:
        world.await_object("deployment", namespace, name)
        world.await_object("service", namespace, name)
    becomes(
        lambda: {world.get("egress", namespace, name).get("status", {}).get("replicas") for name in names},
        {1},
        what="every status",
    )


def test_another_replica_takes_over(world: EgressWorld, replica: EgressReplica, namespace: str) -> None:
    second = world.start_replica(RESYNC)
    replica.service.kill()
    try:
        world.apply_egress(namespace)
        becomes(lambda: len(router_pods(world, namespace)), 1, what="router pods")
    finally:
        replica.service.start()
        replica.restore()
        second.service.process.stop(timeout=STOP_TIMEOUT)


def test_clients_that_no_coild_tells_of_are_told_to_router_pods(world: EgressWorld, namespace: str) -> None:
    """As those of a node that Coil in Go serves."""
    path = f"/apis/coil.cybozu.com/v2/namespaces/{namespace}/egressclientslices"

    def told() -> dict[str, list[str]]:
        """By node, what the controller tells."""
        slices = world.plane.read(path)["items"]
        ours = [each for each in slices if "coil.cybozu.com/node" not in each["metadata"]["labels"]]
        return {each["nodeName"]: each["addresses"] for each in ours}

    def add_pod(name: str, node: str, *addresses: str, egress: str = "nat") -> None:
        annotations = {f"egress.coil.cybozu.com/{namespace}": egress}
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}
        metadata = {"name": name, "namespace": apps, "annotations": annotations}
        apply(world.plane, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses]}
        change = json.dumps({"status": status})
        world.kubectl(apps, "patch", "pod", name, "--subresource=status", "--type=merge", f"--patch={change}")

    apps = world.add_namespace()
    wait_until(lambda: world.find("serviceaccount", apps, "default"), what="an account for pods")
    for node in ("moved", "not-yet"):
        apply(world.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    try:
        world.apply_egress(namespace)
        add_pod("stranger", "not-yet", "10.99.0.9", egress="other")
        add_pod("first", "not-yet", "10.99.0.1", "fd99::1")
        add_pod("second", "moved", "10.99.0.2")
        becomes(told, {"not-yet": ["10.99.0.1", "fd99::1"], "moved": ["10.99.0.2"]}, what="clients are told")
        add_pod("third", "not-yet", "10.99.0.3")
        becomes(lambda: told()["not-yet"], ["10.99.0.1", "10.99.0.3", "fd99::1"], what="one more is told")
        world.kubectl(apps, "delete", "pod", "third", "--grace-period=0", "--force")
        becomes(lambda: told()["not-yet"], ["10.99.0.1", "fd99::1"], what="one that goes is followed")
        labels = {"coil.cybozu.com/egress": "nat", "coil.cybozu.com/node": "moved"}
        of_coild = {
            "apiVersion": "coil.cybozu.com/v2",
            "kind": "EgressClientSlice",
            "metadata": {"name": "of-coild", "namespace": namespace, "labels": labels},
            "nodeName": "moved",
            "addresses": ["10.99.0.2"],
        }
        apply(world.plane, of_coild)
        becomes(told, {"not-yet": ["10.99.0.1", "fd99::1"]}, what="the node's own word counts")
        world.kubectl(apps, "delete", "pod", "first", "--grace-period=0", "--force")
        becomes(told, {}, what="the last one of a node is followed")
    finally:
        world.plane.kubectl("delete", "node", "moved", "not-yet", "--ignore-not-found")


def published(world: EgressWorld, key: str) -> list[str]:
    """The networks that the ConfigMap of the cluster's networks has under that key."""
    data = world.plane.read(CLUSTER_NETWORKS_PATH).get("data") or {}
    return sorted(data.get(key, "").split())


def test_nodes_and_router_pods_are_told_the_clusters_networks(world: EgressWorld, namespace: str) -> None:
    def excluded() -> list[str]:
        return sorted(world.get("egress", namespace).get("status", {}).get("clusterNetworks", []))

    def told() -> list[str]:
        return published(world, "networks")

    wait_until(lambda: "198.51.100.0/24" in told(), what="what only the flag names")
    world.apply_egress(namespace)
    before = told()
    becomes(excluded, before, what="router pods are told the same")
    assert {"198.19.0.0/16"} < set(before), "the network of Services"
    spec = {"subnets": [{"ipv4": "100.96.0.0/16"}, {"ipv4": "10.97.0.0/16"}]}
    pool = {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressPool", "metadata": {"name": "shared"}, "spec": spec}
    apply(world.plane, pool)
    becomes(told, sorted([*before, "100.96.0.0/16"]), what="the pool's network that is not private")
    becomes(excluded, told(), what="router pods are told the same")
    world.plane.kubectl("delete", "addresspool", "shared")
    becomes(told, before, what="a pool that is gone")


def test_networks_of_other_programs_are_found(world: EgressWorld) -> None:
    """With the fields that Calico, Cilium, kubeadm and kube-proxy write; their kinds come after the controller."""
    kinds = [
        foreign_kind("crd.projectcalico.org", "v1", "IPPool"),
        foreign_kind("cilium.io", "v2", "CiliumNode"),
    ]
    apply(world.plane, *kinds)
    names = [f"crd/{kind['metadata']['name']}" for kind in kinds]
    world.plane.kubectl("wait", "--for=condition=Established", "--timeout=180s", *names)
    kubeadm = "networking:\n  podSubnet: 10.244.0.0/16,fd01::/48\n  serviceSubnet: 198.19.0.0/16\n"
    configurations = {
        "kubeadm-config": {"ClusterConfiguration": kubeadm},
        "kube-proxy": {"config.conf": "clusterCIDR: 10.250.0.0/16\n"},
        "cilium-config": {"cluster-pool-ipv4-cidr": "10.0.0.0/16"},
    }
    documents: list[Document] = [
        {
            "apiVersion": "crd.projectcalico.org/v1",
            "kind": "IPPool",
            "metadata": {"name": "pods"},
            "spec": {"cidr": "192.168.0.0/16", "blockSize": 26, "ipipMode": "Always"},
        },
        {
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumNode",
            "metadata": {"name": "n1"},
            "spec": {"ipam": {"podCIDRs": ["10.0.7.0/24", "10.1.7.0/24"]}},
        },
        *(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": "kube-system"},
                "data": data,
            }
            for name, data in configurations.items()
        ),
    ]
    key = "pod-and-service-networks"
    wait_until(lambda: "198.51.100.0/24" in published(world, key), what="what only the flag names")
    before = published(world, key)
    apply(world.plane, *documents)
    found = ["10.0.7.0/24", "10.244.0.0/16", "10.250.0.0/16", "192.168.0.0/16", "fd01::/48"]
    becomes(lambda: published(world, key), sorted([*before, *found]), what="all of these networks")
    extra = json.dumps({"data": {"extra": "10.99.0.0/16"}})
    world.kubectl("kube-system", "patch", "configmap", "coil-cluster-networks", "--type=merge", f"--patch={extra}")
    becomes(lambda: published(world, key), sorted([*before, *found, "10.99.0.0/16"]), what="what was added by hand")
    nothing = json.dumps({"data": {"extra": None}})
    world.kubectl("kube-system", "patch", "configmap", "coil-cluster-networks", "--type=merge", f"--patch={nothing}")
    for document in documents[2:]:
        world.kubectl("kube-system", "delete", "configmap", document["metadata"]["name"])
    world.plane.kubectl("delete", *names)
    becomes(lambda: published(world, key), before, what="programs that are gone")


def test_an_egress_that_goes_takes_everything_with_it_and_may_come_again(world: EgressWorld, namespace: str) -> None:
    world.apply_egress(namespace, podDisruptionBudget={"maxUnavailable": 1})
    becomes(lambda: len(router_pods(world, namespace)), 1, what="router pods")
    world.await_object("poddisruptionbudget", namespace)
    world.kubectl(namespace, "delete", "egress", "nat")
    world.apply_egress(namespace, replicas=2)
    egress = world.get("egress", namespace)
    becomes(lambda: len(router_pods(world, namespace)), 2, what="router pods of the new one")

    def owner(kind: str) -> str:
        found = world.find(kind, namespace)
        return "" if found is None else str(found["metadata"]["ownerReferences"][0]["uid"])

    becomes(lambda: owner("deployment"), egress["metadata"]["uid"], what="the new one's Deployment")
    becomes(lambda: owner("service"), egress["metadata"]["uid"], what="the new one's Service")
    becomes(lambda: world.find("poddisruptionbudget", namespace), None, what="no budget")
    assert "DeploymentNameTaken" not in world.events(namespace)
    world.kubectl(namespace, "delete", "egress", "nat")
    for kind in ("deployment", "service"):
        becomes(lambda kind=kind: world.find(kind, namespace), None, what=f"no {kind}")  # type: ignore[misc]
