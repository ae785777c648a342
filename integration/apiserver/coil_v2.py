"""Coil v2 itself: its Go programs and its manifests, rendered by kustomize as its users do it.

On a control plane without kubelets, the manifests' objects are all there, and the programs are processes with the
accounts, the command lines and the network configuration of the manifests. What they leave on a node is compared with
`integration.go_coild`, which writes it down for the tests that do without these programs.
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import yaml

from integration.apiserver.bare_node import BareNode
from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import host_in_url
from integration.cluster.pki import CertificateAuthority
from integration.cluster.programs import COIL_V2, Program, locate
from integration.deployment import apply, leader_probe, ready_probe
from integration.service import Service

Document = dict[str, Any]

_SYSTEM: Final = "kube-system"
_LOCALHOST: Final = IPv4Address("127.0.0.1")
_WEBHOOK_SERVERS: Final = ("ipam", "egress")
_INSTALL_SECONDS: Final = 60.0
"""For the installer, which itself waits for 6."""
_OWNING: Final = "coil-controllers-owners"
_LABELS: Final = {"app.kubernetes.io/name": "coil"}
_OWNERS: Final = ["addresspools/finalizers", "egresses/finalizers"]
_OWNING_DOCUMENTS: Final[Sequence[Document]] = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": _OWNING, "labels": _LABELS},
        "rules": [{"apiGroups": ["coil.cybozu.com"], "resources": _OWNERS, "verbs": ["update"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _OWNING, "labels": _LABELS},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _OWNING},
        "subjects": [
            {"kind": "ServiceAccount", "name": f"coil-{server}-controller", "namespace": _SYSTEM}
            for server in _WEBHOOK_SERVERS
        ],
    },
)
"""What Coil v2 lacks on an API server with the admission plugin OwnerReferencesPermissionEnforcement, as this one."""


@dataclass(frozen=True, slots=True)
class CoilV2:
    """Make it with `prepare`. `programs` is the folder of the programs and of their manifests."""

    plane: ControlPlane
    programs: Path
    documents: tuple[Document, ...]
    """What the manifests are rendered to; the webhooks are at the ports `webhooks` in place of Services."""
    webhooks: Mapping[str, int]
    """Of the control plane's address, by `_WEBHOOK_SERVERS`."""
    certificates: Path
    """A folder for each of `_WEBHOOK_SERVERS`."""

    @classmethod
    def prepare(cls, plane: ControlPlane) -> "CoilV2":
        """Build the programs, unless they are in the cache, and render the manifests; nothing is applied."""
        programs = locate(COIL_V2)[Program.COIL_V2_COILD].parent
        work = plane.workspace.make_folder("coil-v2")
        certificates = _write_manifests(programs, work, plane)
        text = plane.kubectl("kustomize", "--load-restrictor=LoadRestrictionsNone", str(work))
        documents = tuple(document for document in yaml.safe_load_all(text) if document)
        webhooks: dict[str, int] = {}
        for server in _WEBHOOK_SERVERS:
            webhooks[server] = free_port(plane.address, max([9542, *webhooks.values()]) + 1)
            for document in documents:
                if document["metadata"]["name"].endswith(f"-{server}-webhook-configuration"):
                    _call_by_url(document, f"https://{host_in_url(plane.address)}:{webhooks[server]}")
        return cls(plane, programs, documents, webhooks, certificates)

    @property
    def plugin(self) -> Path:
        """Where no installer has put it."""
        return self.programs / Program.COIL_V2_PLUGIN

    def apply(self) -> None:
        """As `kustomize build | kubectl apply` does it, and a right that only some API servers ask for. Idempotent."""
        apply(self.plane, *self.documents, *_OWNING_DOCUMENTS)

    def start_controller(self) -> Service:
        """The ipam-controller, beside the control plane; returns when it leads."""
        return self._start_controller(Program.COIL_V2_IPAM_CONTROLLER, "ipam", {})

    def start_egress_controller(self, pod: PodName) -> Service:
        """The egress-controller, which reads of its own pod what the image of router pods is; returns when it leads."""
        own = {"COIL_POD_NAMESPACE": pod.namespace, "COIL_POD_NAME": pod.name}
        return self._start_controller(Program.COIL_V2_EGRESS_CONTROLLER, "egress", own)

    def _start_controller(self, program: Program, server: str, environment: Mapping[str, str]) -> Service:
        metrics = free_port(_LOCALHOST, 19486)
        health = free_port(_LOCALHOST, metrics + 1)
        command = [
            *self._command_line("Deployment", program),
            f"--metrics-addr={_LOCALHOST}:{metrics}",
            f"--health-addr={_LOCALHOST}:{health}",
            f"--webhook-addr={host_in_url(self.plane.address)}:{self.webhooks[server]}",
            f"--cert-dir={self.certificates / server}",
        ]
        environment = {**environment, "KUBECONFIG": str(self.plane.kubeconfig_for(program.value))}
        spawn = partial(self.plane.workspace.spawn, f"coil-v2-{program.value}", command, env=environment)
        ready, leads = ready_probe(health), leader_probe(metrics)
        service = Service(spawn, ready=lambda: ready() and leads())
        service.wait_ready()
        return service

    def start_coild(self, node: BareNode, *flags: str) -> Service:
        """coild in the node's namespaces; returns when it takes calls."""
        command = [*self._command_line("DaemonSet", Program.COIL_V2_COILD), f"--socket={node.socket}", *flags]
        environment = {"KUBECONFIG": str(self.plane.kubeconfig_for("coild")), "COIL_NODE_NAME": node.name}
        service = Service(partial(node.spawn, "coil-v2-coild", command, env=environment), ready=node.is_served)
        service.wait_ready()
        return service

    def install_plugin(self, node: BareNode) -> Runtime:
        """Run the installer with the manifests' configuration; returns a runtime that uses the file it has written."""
        folder = node.workspace.make_folder(node.name, "cni")
        [configuration] = [each for each in self.documents if each["kind"] == "ConfigMap"]
        conflist = json.loads(configuration["data"]["cni_netconf"])
        conflist["plugins"][0]["socket"] = str(node.socket)
        environment = {
            **os.environ,
            "CNI_BIN_DIR": str(folder / "bin"),
            "CNI_ETC_DIR": str(folder / "net.d"),
            "CNI_NETCONF": json.dumps(conflist),
            "COIL_PATH": str(self.plugin),
        }
        subprocess.run(
            [self.programs / Program.COIL_V2_INSTALLER], env=environment, timeout=_INSTALL_SECONDS, check=True
        )
        [installed] = (folder / "net.d").iterdir()
        return Runtime(folder / "bin" / "coil", json.loads(installed.read_text())["plugins"][0])

    def _command_line(self, kind: str, program: Program) -> Sequence[str]:
        """The program, with the arguments that the workload of its name gives it."""
        [workload] = [
            each for each in self.documents if each["kind"] == kind and each["metadata"]["name"] == program.value
        ]
        [container] = workload["spec"]["template"]["spec"]["containers"]
        assert container["command"] == [program.value]
        return [str(self.programs / program), *container["args"]]


def _write_manifests(programs: Path, work: Path, plane: ControlPlane) -> Path:
    """What `make certs` adds to the manifests' sources; returns the folder of the controllers' certificates."""
    shutil.copytree(programs / "config", work / "config")
    for name in ("kustomization.yaml", "netconf.json"):
        shutil.copy(programs / name, work)
    pki, served = plane.workspace.make_folder("coil-v2-pki"), plane.workspace.make_folder("coil-v2-certificate")
    authority = CertificateAuthority(pki, name="coil-v2")
    target = work / "config" / "default"
    shutil.copy(authority.certificate, target / "cert.pem")
    trusted = base64.b64encode(authority.certificate.read_bytes()).decode()
    for server in _WEBHOOK_SERVERS:
        name = f"coilv2-{server}-webhook-service"
        pair = authority.issue(name, hosts=[f"{name}.{_SYSTEM}.svc", str(plane.address)])
        shutil.copy(pair.certificate, target / f"{server}-cert.pem")
        shutil.copy(pair.key, target / f"{server}-key.pem")
        patch = target / server / "webhook_manifests_patch.yaml"
        patch.write_text(patch.with_name(f"{patch.name}.tmpl").read_text().replace("%CACERT%", trusted))
        (served / server).mkdir()
        shutil.copy(pair.certificate, served / server / "tls.crt")
        shutil.copy(pair.key, served / server / "tls.key")
    return served


def _call_by_url(document: Document, server: str) -> None:
    for webhook in document["webhooks"]:
        client = webhook["clientConfig"]
        client["url"] = server + client.pop("service")["path"]
