"""The chart on a real API server: it takes every document of every profile, and Helm installs, upgrades, uninstalls."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply, apply_kinds, check_supported
from integration.helm.chart import CHART, NAMESPACE, PROFILES, RELEASE, Document, profile_names, render
from integration.helm.program import HelmError, run_helm

pytestmark = pytest.mark.apiserver

OTHER_NAMESPACE = "coil-system"
FOREIGN = ("cert-manager.io/v1", "monitoring.coreos.com/v1")
"""Of projects that are not installed here; what is said to them is in tests/integration_helm."""
EVERYTHING = {
    "eip": {"enabled": True, "forwardShim": True},
    "routeSync": {"enabled": True},
    "egress": {"hostNetwork": False, "loadKernelModules": False},
    "webhooks": {"certificates": "cert-manager"},
    "metrics": {
        "enabled": True,
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
}
CLEANUP = {"eip": {"enabled": True}, "cleanup": {"enabled": True}}


@pytest.fixture(scope="module")
def server() -> Iterator[ControlPlane]:
    """An API server of our own, with what its controllers would have made: a release takes much of it with it."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHER_NAMESPACE}}
    leases = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "coil-eip-leases"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    # Helm makes that of a test's pod before the pod, for which the server looks it up.
    accounts = [
        {**account, "metadata": {"name": name, "namespace": place}}
        for place in (NAMESPACE, OTHER_NAMESPACE)
        for name in ("default", "coil-test-nodes")
    ]
    with ControlPlane.start() as plane:
        check_supported(plane)
        apply_kinds(plane)
        apply(plane, namespace, leases, *accounts)
        yield plane


def version_of(server: ControlPlane) -> str:
    return f"{server.version.major}.{server.version.minor}.0"


def pretend(server: ControlPlane, documents: list[Document]) -> list[str]:
    """Have the server take them, as Helm would, and forget them; their kinds.

    Raises KubectlError, also if the server warns of something, such as a version that will not be served for ever.
    """
    items = [document for document in documents if document["apiVersion"] not in FOREIGN]
    answer = server.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--field-manager=helm", "--force-conflicts"),
        "--warnings-as-errors",
        *("--filename=-", "--output=json"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )
    taken: list[dict[str, Any]] = json.loads(answer)["items"]
    assert len(taken) == len(items)
    return [document["kind"] for document in taken]


@pytest.mark.parametrize("profile", profile_names())
def test_the_server_takes_all_of_a_profile(server: ControlPlane, profile: str) -> None:
    kinds = pretend(server, render(None, profile, kubernetes=version_of(server)))
    assert {"DaemonSet", "Deployment", "PodDisruptionBudget", "ClusterRole", "Pod"} <= set(kinds)


@pytest.mark.parametrize("values", [EVERYTHING, CLEANUP], ids=["everything", "cleanup"])
def test_the_server_takes_what_no_profile_asks_for(server: ControlPlane, values: dict[str, object]) -> None:
    documents = render(values, namespace=OTHER_NAMESPACE, kubernetes=version_of(server))
    assert pretend(server, documents)


def helm(server: ControlPlane, *arguments: str) -> str:
    return run_helm([*arguments, f"--kubeconfig={server.admin_kubeconfig}", f"--namespace={OTHER_NAMESPACE}"])


def list_release(server: ControlPlane) -> set[tuple[str, str]]:
    """Kind and name of the objects that the release has put on the server."""
    kinds = "deployment,daemonset,service,serviceaccount,poddisruptionbudget,clusterrole,validatingwebhookconfiguration"
    selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/managed-by=Helm"
    answer = server.kubectl("get", kinds, "--all-namespaces", f"--selector={selector}", "--output=json")
    return {(item["kind"], item["metadata"]["name"]) for item in json.loads(answer)["items"]}


def test_helm_installs_upgrades_and_uninstalls_a_release(server: ControlPlane) -> None:
    try:
        notes = helm(server, "install", RELEASE, str(CHART))
        assert "kind: AddressPool" in notes
        assert f"helm -n {OTHER_NAMESPACE} test {RELEASE}" in notes
        installed = list_release(server)
        assert {("DaemonSet", "coild"), ("Deployment", "coil-egress-controller")} <= installed
        assert ("DaemonSet", "coil-egress-agent-node") not in installed

        # The release makes the Leases' namespace; the usual one is there already.
        values = (f"--values={PROFILES / 'eip-gateway.yaml'}", "--set=eip.leaseNamespace=leases-of-the-release")
        helm(server, "upgrade", RELEASE, str(CHART), *values)
        assert ("DaemonSet", "coil-egress-agent-node") in list_release(server)

        notes = helm(server, "upgrade", RELEASE, str(CHART), *values, "--set=cleanup.enabled=true")
        assert "rollout status daemonset/coil-cleanup" in notes
        left = {name for kind, name in list_release(server) if kind in ("DaemonSet", "Deployment")}
        assert left == {"coil-cleanup"}
    finally:
        helm(server, "uninstall", RELEASE, "--ignore-not-found")
    assert list_release(server) == set()
    assert "addresspools" in server.kubectl("get", "crd", "--output=name")


def test_a_wrong_value_changes_nothing(server: ControlPlane) -> None:
    with pytest.raises(HelmError, match="/ipam/replicas"):
        helm(server, "install", RELEASE, str(CHART), "--set=ipam.replicas=none")
    assert list_release(server) == set()
