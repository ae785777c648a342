"""The chart without its pods, for stages that have no kubelet: the API server gets its kinds, accounts, roles and
webhooks, and the programs are processes beside it, under their own service accounts (never as administrator).

Used by the API server tests, the stages of soak, EIP and egress, and the bench. On a whole cluster Helm installs it:
`integration.helm.release`. Whatever is started ends with the control plane.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from integration.access.right import RAVEN_VALUES
from integration.cluster.address import free_port
from integration.cluster.command_line import Version
from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import host_in_url
from integration.cluster.process import Process
from integration.helm.chart import CHART, NAMESPACE, Document, render
from integration.patience import wait_until
from integration.plugin.executable import plugin_executable

IPAM_CONTROLLER = "coil-ipam-controller"
EGRESS_CONTROLLER = "coil-egress-controller"
WEBHOOK_KINDS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
ACCESS_KINDS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
NODE_LIST = "coild-nodes"
NODE_CONDITION = "coild-node-condition"
OWN_NODE_POLICIES = (
    "coild-own-node",
    "coild-own-clients",
    "coild-own-blocks",
    "coild-own-requests",
    "coil-egress-node-own-tunnel",
    "coil-egress-node-own-lease",
)
KINDS = ("addresspools", "addressblocks", "blockrequests", "egresses", "egressclientslices")
EIP_KINDS = (
    *("egresstunnels", "egressgateways", "egressgatewaypolicies", "egressendpointslices"),
    *("egresspolicies", "egressclusterpolicies", "egressclusterinfos"),
)
EIP_VALUES: Final[dict[str, object]] = {"enabled": True, "egressPolicies": True}
WEBHOOKS_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/coil-ipam-controller"
EGRESS_WEBHOOKS_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/coil-egress-controller"
POOLS_PATH = "/apis/coil.cybozu.com/v2/addresspools"
EGRESSES_PATH = "/apis/coil.cybozu.com/v2/namespaces/default/egresses"
CLUSTER_NETWORKS_PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/coil-cluster-networks"
CLUSTER_NETWORKS_FLAG = f"--cluster-networks={NAMESPACE}/coil-cluster-networks"
"""As the chart has it for all that write or read this ConfigMap."""
COILD_HEALTH_PORT = 9385
START_SECONDS = 120.0
INSTALL_SECONDS = 180.0
_LEADING = re.compile(rb"^leader_election_master_status\{.*\} 1(\.0)?$", re.MULTILINE)


OLDEST_SUPPORTED = Version(1, 25)
"""As the chart says it (kubeVersion)."""


class UnsupportedVersionError(Exception):
    """The cluster's Kubernetes is older than what Coil supports."""


def check_supported(plane: ControlPlane) -> None:
    """Raises UnsupportedVersionError, before something fails for want of an API."""
    if plane.version < OLDEST_SUPPORTED:
        raise UnsupportedVersionError(
            f"Coil needs Kubernetes {OLDEST_SUPPORTED} or newer, for policy/v1 and rules in custom resource "
            f"definitions; this is {plane.version}. It takes a Go module proxy to build today's "
            "(docs/development.md); without it, only what needs neither Helm nor Egresses can be tested"
        )


class InstallError(Exception):
    """The installer refused; the message is what it said."""


def apply_chart(plane: ControlPlane) -> None:
    """Kinds, service accounts and roles. Returns when the API server serves the kinds. Idempotent.

    Nobody judges pools or Egresses from then on: webhooks come with a controller that answers them (`apply_webhooks`).
    """
    apply_kinds(plane)
    apply(plane, *access_documents())
    await_access(plane)
    remove_webhooks(plane)
    remove_webhooks(plane, of=EGRESS_CONTROLLER)
    names = [f"crd/{kind}.coil.cybozu.com" for kind in KINDS]
    names += [f"crd/{kind}.egressgateway.spidernet.io" for kind in EIP_KINDS]
    plane.kubectl("wait", "--for=condition=Established", f"--timeout={START_SECONDS:.0f}s", *names)


def await_access(plane: ControlPlane) -> None:
    """Return when the API server knows the roles of the chart that it has."""
    access = access_documents()
    wait_until(lambda: _has_access(plane, access), what="the API server has taken in the programs' roles")


def _has_access(plane: ControlPlane, documents: Sequence[Document]) -> bool:
    """Whether each account that has roles in all namespaces may do what the first rule of each says.

    The API server learns of roles and of bindings by watches of its own, some time after it has accepted them.
    """
    rules = {each["metadata"]["name"]: each["rules"] for each in documents if each["kind"] == "ClusterRole"}
    bindings = [each for each in documents if each["kind"] == "ClusterRoleBinding" and each.get("subjects")]
    return all(
        _may(plane, subject, rules[binding["roleRef"]["name"]][0])
        for binding in bindings
        for subject in binding["subjects"]
    )


def _may(plane: ControlPlane, account: Mapping[str, str], rule: Mapping[str, Sequence[str]]) -> bool:
    attributes = {"verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": rule["resources"][0]}
    if names := rule.get("resourceNames"):
        attributes["name"] = names[0]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    _, answer = plane.request("POST", path, json.dumps(review).encode())
    return bool(json.loads(answer).get("status", {}).get("allowed"))


def apply_kinds(plane: ControlPlane, chart: Path = CHART) -> None:
    """The chart's custom resource definitions. Returns before they are served. Idempotent."""
    # An API server from before 1.23 has no word for the CRDs' rules; kubectl would refuse them in its place, "warn" has
    # servers judge that know how to, and these drop what they do not know.
    plane.kubectl("apply", "--validate=warn", "--warnings-as-errors", f"--filename={chart / 'crds'}")


def access_documents() -> list[Document]:
    """Accounts and roles of all programs: the chart without workloads, which are processes of the tests here."""
    everything = {"eip": EIP_VALUES, "raven": RAVEN_VALUES}
    return [document for document in render(everything) if document["kind"] in ACCESS_KINDS]


def webhook_documents(of: str = IPAM_CONTROLLER) -> list[Document]:
    """The webhook configurations of a controller, as the chart has them."""
    documents = render({"eip": EIP_VALUES})
    return [document for document in documents if "webhooks" in document and document["metadata"]["name"] == of]


def grant_node_list(plane: ControlPlane) -> None:
    """What the chart has in addition with routeSync.enabled, or the profile neutron: each coild may read all nodes.

    Idempotent.
    """
    documents = render({"routeSync": {"enabled": True}})
    apply(plane, *(document for document in documents if document["metadata"]["name"] == NODE_LIST))


def revoke_node_list(plane: ControlPlane) -> None:
    """The opposite of `grant_node_list`. Idempotent."""
    plane.kubectl("delete", "clusterrolebinding,clusterrole", NODE_LIST, "--ignore-not-found")


def apply_eni_access(plane: ControlPlane) -> None:
    """What the chart has in addition with the profile aws-eni: each coild may say whether pods would get addresses.

    Idempotent.
    """
    documents = render({"aws": {"clusterName": "test"}}, "aws-eni")
    apply(plane, *(document for document in documents if document["metadata"]["name"] == NODE_CONDITION))


def apply_own_node_policies(plane: ControlPlane, values: Mapping[str, object] | None = None) -> None:
    """What binds each coild to its own Node. Returns before it is enforced. Idempotent."""
    version = f"{plane.version.major}.{plane.version.minor}.0"
    documents = render({"eip": {"enabled": True}, **(values or {})}, kubernetes=version)
    apply(plane, *(document for document in documents if document["metadata"]["name"] in OWN_NODE_POLICIES))


def remove_own_node_policies(plane: ControlPlane) -> None:
    """The opposite of `apply_own_node_policies`. Idempotent."""
    kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy"
    plane.kubectl("delete", kinds, *OWN_NODE_POLICIES, "--ignore-not-found")


def apply_webhooks(plane: ControlPlane, *, port: int, of: str = IPAM_CONTROLLER) -> None:
    """The chart's webhook configurations of a controller that is at that port of the control plane's address.

    The chart calls a Service; but the API server under test is no member of a cluster whose Services it could reach.
    """
    documents = webhook_documents(of)
    for document in documents:
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://{host_in_url(plane.address)}:{port}{path}"}
    apply(plane, *documents)


def remove_webhooks(plane: ControlPlane, *, of: str = IPAM_CONTROLLER) -> None:
    """Let every object of that controller's kind pass again that the schema accepts. Idempotent."""
    plane.kubectl("delete", ",".join(WEBHOOK_KINDS), of, "--ignore-not-found")


def apply(plane: ControlPlane, *documents: Mapping[str, object]) -> None:
    """`kubectl apply` of documents, as the administrator."""
    # To validate, kubectl would read the schemas of all kinds first, which takes most of its time. The chart is
    # validated by a test of its own.
    plane.kubectl(
        *("apply", "--validate=false", "--filename=-"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}),
    )


def _webhook_port(plane: ControlPlane, preferred: int, *, everywhere: bool) -> tuple[str, int]:
    """Where a controller is to listen, and the port: at the control plane's address, or, as in a pod, at every address
    of the machine.
    """
    port = free_port(IPv6Address("::") if everywhere else plane.address, preferred)
    return f"{'' if everywhere else host_in_url(plane.address)}:{port}", port


def ipam_controller_command(
    plane: ControlPlane, *, ports: tuple[int, int], flags: Sequence[str] = (), everywhere: bool = False
) -> list[str]:
    """How an ipam-controller is started, as its service account; may be used again after its death.

    `ports` are those of its metrics and health, on localhost. It answers the API server's reviews of pools at
    a port of its own, of all addresses if `everywhere`: from now on no pool is created or changed while it is away.
    """
    metrics, health = ports
    # Another one's port may not be in use yet; those on localhost are told apart already.
    endpoint, webhook = _webhook_port(plane, 9443 + abs(health - 9387), everywhere=everywhere)
    apply_webhooks(plane, port=webhook)
    return [
        *(sys.executable, "-m", "coil_ipam_controller"),
        f"--kubeconfig={plane.kubeconfig_for('coil-ipam-controller')}",
        f"--metrics-addr=127.0.0.1:{metrics}",
        f"--health-addr=127.0.0.1:{health}",
        f"--webhook-addr={endpoint}",
        f"--webhook-host={plane.address}",
        *flags,
    ]


def egress_controller_command(
    plane: ControlPlane, *, ports: tuple[int, int], image: str, flags: Sequence[str] = (), everywhere: bool = False
) -> list[str]:
    """How an egress-controller is started, as its service account; may be used again after its death.

    `ports` are those of its metrics and health, on localhost; `image` is the router pods'. It answers the API server's
    reviews of Egresses at a port of its own, of all addresses if `everywhere`: from now on none is created or changed
    while it is away.
    """
    check_supported(plane)
    metrics, health = ports
    endpoint, webhook = _webhook_port(plane, 9444 + abs(health - 9397), everywhere=everywhere)
    apply_webhooks(plane, port=webhook, of=EGRESS_CONTROLLER)
    return [
        *(sys.executable, "-m", "coil_egress_controller"),
        f"--kubeconfig={plane.kubeconfig_for('coil-egress-controller')}",
        f"--metrics-addr=127.0.0.1:{metrics}",
        f"--health-addr=127.0.0.1:{health}",
        f"--webhook-addr={endpoint}",
        f"--webhook-host={plane.address}",
        f"--egress-image={image}",
        *flags,
    ]


def apply_cluster_networks(plane: ControlPlane) -> None:
    """The ConfigMap that a controller with CLUSTER_NETWORKS_FLAG fills in. Idempotent."""
    apply(plane, *(document for document in render() if document["kind"] == "ConfigMap"))


def egress_agent_command(plane: ControlPlane, *, namespace: str, flags: Sequence[str] = ()) -> list[str]:
    """How the agent of a router pod in that namespace is started, as its service account, which exists.

    It wants COIL_POD_NAMESPACE, COIL_EGRESS_NAME and COIL_POD_ADDRESSES, and the pod's network namespace.
    """
    account = plane.kubeconfig_for("coil-egress", namespace)
    return [*(sys.executable, "-m", "coil_egress_agent"), f"--kubeconfig={account}", *flags]


def bind_router_pods(plane: ControlPlane, namespace: str) -> None:
    """Let the account of router pods there do what it may, as the egress-controller does."""
    role, subject = "--clusterrole=coil-egress", f"--serviceaccount={namespace}:coil-egress"
    plane.kubectl("create", "rolebinding", "coil-egress", role, subject, f"--namespace={namespace}")


def former_router_binding() -> Document:
    """The ClusterRoleBinding that router pods of former images need, without subjects, as the chart has it."""
    documents = render({"egress": {"routersReadPods": True}})
    [binding] = [
        document
        for document in documents
        if (document["kind"], document["metadata"]["name"]) == ("ClusterRoleBinding", "coil-egress")
    ]
    return binding


def coild_command(
    plane: ControlPlane, *, socket: Path, flags: Sequence[str] = (), kubeconfig: Path | None = None
) -> list[str]:
    """How coild is started, as its service account; may be used again after its death. It wants COIL_NODE_NAME.

    It fails open unless `flags` say otherwise: without a kubelet most sandboxes have no Pod object, and their ADDs
    would be refused for it.
    """
    flags = ["--egress-fail-open=true", *flags]
    return daemon_command(kubeconfig or plane.kubeconfig_for("coild"), socket=socket, flags=flags)


def daemon_command(kubeconfig: Path, *, socket: Path, flags: Sequence[str] = ()) -> list[str]:
    """The same with a kubeconfig that is there already."""
    return [
        *(sys.executable, "-m", "coild"),
        f"--kubeconfig={kubeconfig}",
        f"--socket={socket}",
        f"--journal={socket.with_suffix('.journal')}",
        *flags,
    ]


def start_ipam_controller(
    plane: ControlPlane, *, name: str = "coil-ipam-controller", ports: tuple[int, int]
) -> Process:
    """Start one ipam-controller beside the control plane; `ports` are those of its metrics and health, on localhost."""
    return plane.workspace.spawn(name, ipam_controller_command(plane, ports=ports))


def install_plugin(*, bin_dir: Path, etc_dir: Path, socket: Path) -> Path:
    """Run the installer for a node's directories; returns the path of the plugin. Raises InstallError."""
    conflist = {"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": [{"type": "coil", "socket": str(socket)}]}
    environment = {
        **os.environ,
        "CNI_BIN_DIR": str(bin_dir),
        "CNI_ETC_DIR": str(etc_dir),
        "CNI_NETCONF": json.dumps(conflist),
        "COIL_PATH": str(plugin_executable()),
    }
    command = [sys.executable, "-m", "coil_installer.main"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise InstallError(f"the installer ended with code {done.returncode}: {done.stderr.strip()}")
    return bin_dir / "coil"


def ready_probe(port: int) -> Callable[[], bool]:
    """Asks a program in this network namespace for its `/readyz`."""

    def ready() -> bool:
        connection = HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    return ready


def leader_probe(port: int) -> Callable[[], bool]:
    """Asks a controller's metrics whether it leads; one that does not answer does not."""

    def leads() -> bool:
        connection = HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/metrics")
            return _LEADING.search(connection.getresponse().read()) is not None
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    return leads


def controller_probe(plane: ControlPlane, *, health: int) -> Callable[[], bool]:
    """Asks whether an ipam-controller is ready, and whether the API server calls it, if it is to (`remove_webhooks`).

    The API server hears of webhooks, and whom to trust for them, by a watch: that is a moment after the controller has
    told it. A pool is created in pretence until one of the webhooks has had its say.
    """
    ready = ready_probe(health)
    pool = {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "AddressPool",
        "metadata": {"name": "admission-probe"},
        "spec": {"subnets": [{"ipv4": "192.0.2.0/27"}]},
    }

    def admitted() -> bool:
        if not ready():
            return False
        try:
            if plane.request("GET", WEBHOOKS_PATH)[0] == 404:
                return True
            status, body = plane.request("POST", f"{POOLS_PATH}?dryRun=All", json.dumps(pool).encode())
        except (OSError, HTTPException):
            return False
        return (status == 201 and b'"finalizers"' in body) or (status == 422 and b"admission webhook" in body)

    return admitted


def egress_controller_probe(plane: ControlPlane, *, health: int) -> Callable[[], bool]:
    """The same for an egress-controller, with an Egress."""
    ready = ready_probe(health)
    egress = {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "Egress",
        "metadata": {"name": "admission-probe"},
        "spec": {"destinations": ["192.0.2.0/24"], "template": {}},
    }

    def admitted() -> bool:
        if not ready():
            return False
        try:
            if plane.request("GET", EGRESS_WEBHOOKS_PATH)[0] == 404:
                return True
            status, body = plane.request("POST", f"{EGRESSES_PATH}?dryRun=All", json.dumps(egress).encode())
        except (OSError, HTTPException):
            return False
        return status == 201 and b'"containers"' in body

    return admitted
