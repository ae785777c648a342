"""Egresses and what becomes of them, for tests of the egress-controller, which runs as real processes.

Everything is in namespaces of this world's own, and goes with them.
"""

import json
import secrets
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Any

from integration.apiserver.refusal_log import missing_rights
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import (
    EGRESS_CONTROLLER,
    apply,
    apply_webhooks,
    egress_controller_command,
    egress_controller_probe,
    leader_probe,
    ready_probe,
    remove_webhooks,
)
from integration.metrics_page import fetch_metrics, parse_samples
from integration.patience import wait_until
from integration.service import Service
from integration.walk.recording import Recording

Document = dict[str, Any]

STOP_TIMEOUT = 60.0  # seconds; it gives itself ten
LOCALHOST = IPv4Address("127.0.0.1")
IMAGE = "example.invalid/coil:test"
NAME = "coil-egress-controller"
# As short as an election allows: a killed leader's lease has to expire before anybody else works.
FLAGS = ("--lease-duration=5s", "--cert-check-interval=500ms")

_PATHS = {
    "egress": "/apis/coil.cybozu.com/v2/namespaces/{namespace}/egresses",
    "deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "service": "/api/v1/namespaces/{namespace}/services",
    "poddisruptionbudget": "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
    "serviceaccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "rolebinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
}


class EgressReplica:
    """One egress-controller, its calls noted by `recording`. Its lives share a log and ports. `leads` tells whether it
    says so. `everywhere`: it answers reviews at all addresses.
    """

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        *flags: str,
        recording: Recording | None = None,
        everywhere: bool = False,
    ) -> None:
        self._metrics = metrics = free_port(LOCALHOST, 9396)
        health = free_port(LOCALHOST, metrics + 1)
        self.is_ready = ready_probe(health)
        """Whether it says so itself; whether the API server calls it, `service` asks as well."""
        self._plane = plane
        command = egress_controller_command(
            plane, ports=(metrics, health), image=IMAGE, flags=(*FLAGS, *flags), everywhere=everywhere
        )
        (address,) = (part for part in command if part.startswith("--webhook-addr="))
        self.webhook_port = int(address.rpartition(":")[2])
        if recording is not None:
            command = recording.traced(command)
        self.service = Service(
            lambda: plane.workspace.spawn(name, command), ready=egress_controller_probe(plane, health=health)
        )
        self.leads = leader_probe(metrics)

    def restore(self) -> None:
        """Have the API server call this one, alive."""
        apply_webhooks(self._plane, port=self.webhook_port, of=EGRESS_CONTROLLER)
        self.service.ensure_running()

    def metrics(self) -> dict[str, float]:
        """Its samples, by name and labels as they are written."""
        return parse_samples(fetch_metrics(f"{LOCALHOST}:{self._metrics}"))

    def lines(self) -> list[Document]:
        """What it has logged so far."""
        return self.service.process.entries()

    def logged(self, event: str) -> list[Document]:
        return [line for line in self.lines() if line["event"] == event]

    def resyncs(self) -> int:
        """How often all Egresses have been queued for a comparison with the API server."""
        return sum(line["controller"] == "egress" for line in self.logged("resync"))


class EgressWorld:
    """An API server with the chart, and namespaces in which Egresses are made by `kubectl apply`."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.name = f"egress-{secrets.token_hex(3)}"
        self.replicas: list[EgressReplica] = []
        self._namespaces: list[str] = []

    def start_replica(self, *flags: str, recording: Recording | None = None, everywhere: bool = False) -> EgressReplica:
        """Start a replica and return when it is ready."""
        name = f"{self.name}-{len(self.replicas)}"
        replica = EgressReplica(self.plane, name, *flags, recording=recording, everywhere=everywhere)
        self.replicas.append(replica)
        replica.service.wait_ready()
        return replica

    def stop_replica(self, replica: EgressReplica) -> None:
        """End one that others stand in for; it stays among `replicas`."""
        replica.service.process.stop(timeout=STOP_TIMEOUT)

    def add_namespace(self) -> str:
        name = f"{self.name}-{len(self._namespaces)}"
        self.plane.kubectl("create", "namespace", name)
        self._namespaces.append(name)
        return name

    def apply_egress(self, namespace: str, name: str = "nat", **spec: Any) -> None:
        apply(self.plane, egress_document(namespace, name, **spec))

    def kubectl(self, namespace: str, *arguments: str) -> str:
        return self.plane.kubectl(*arguments, f"--namespace={namespace}")

    def find(self, kind: str, namespace: str, name: str = "nat") -> Document | None:
        """The object; None if there is none."""
        path = _PATHS[kind].format(namespace=namespace)
        status, body = self.plane.request("GET", f"{path}/{name}")
        assert status in {200, 404}, body
        return json.loads(body) if status == 200 else None

    def get(self, kind: str, namespace: str, name: str = "nat") -> Document:
        """The object, which must be there."""
        found = self.find(kind, namespace, name)
        assert found is not None, f"no {kind} {namespace}/{name}"
        return found

    def await_object(self, kind: str, namespace: str, name: str = "nat") -> Document:
        """The object, once it is there."""
        wait_until(lambda: self.find(kind, namespace, name), what=f"{kind} {name}")
        return self.get(kind, namespace, name)

    def versions(self, namespace: str) -> dict[str, str]:
        """Of everything that the controller writes there, the resource version, by kind."""
        found = json.loads(self.kubectl(namespace, "get", ",".join(_PATHS), "--output=json"))["items"]
        return {f"{item['kind']} {item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in found}

    def subjects(self) -> set[str]:
        """Namespaces whose router pods may watch all others, in the ClusterRoleBinding for former images."""
        binding = self.plane.read("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/coil-egress")
        return {subject["namespace"] for subject in binding.get("subjects") or () if subject["name"] == "coil-egress"}

    def events(self, namespace: str, name: str = "nat") -> dict[str, str]:
        """What people were told of the Egress: messages by reason."""
        selector = f"fieldSelector=involvedObject.name={name},involvedObject.kind=Egress"
        items = self.plane.read(f"/api/v1/namespaces/{namespace}/events?{selector}")["items"]
        return {item["reason"]: item["message"] for item in items}

    def missing_rights(self) -> list[str]:
        """What the replicas were refused for want of a right."""
        return [line for replica in self.replicas for line in missing_rights(replica.service.process.log)]

    def close(self) -> None:
        """End the replicas and remove whatever is left."""
        for replica in self.replicas:
            self.stop_replica(replica)
        remove_webhooks(self.plane, of=NAME)
        self.plane.kubectl("delete", "lease", NAME, "--namespace=kube-system", "--ignore-not-found")
        if self._namespaces:
            with suppress(KubectlError):
                self.plane.kubectl("delete", "namespace", *self._namespaces, "--wait=false")


def egress_document(namespace: str, name: str = "nat", **spec: Any) -> Document:
    return {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "Egress",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"destinations": ["0.0.0.0/0", "::/0"], **spec},
    }


def foreign_kind(group: str, version: str, kind: str) -> Document:
    """A custom resource definition with that name, and no more of its program's than that."""
    names = {"kind": kind, "plural": f"{kind.lower()}s"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{group}"},
        "spec": {"group": group, "names": names, "scope": "Cluster", "versions": versions},
    }
