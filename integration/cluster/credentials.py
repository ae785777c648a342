"""Every key, certificate and kubeconfig that a control plane's components hold, made before any of them starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from integration.cluster.family import Address, host_in_url
from integration.cluster.kubeconfig import Server, write_certificate_kubeconfig
from integration.cluster.pki import CertificateAuthority, KeyPair, issue_signing_key

ADMINISTRATORS = "system:masters"  # the group that RBAC lets do everything
SERVICE_HOSTS = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


@dataclass(frozen=True, slots=True)
class NodeCredentials:
    """Files: whom a node trusts, the kubeconfigs of its kubelet and kube-proxy, and what the kubelet serves with."""

    authority: Path
    kubelet: Path
    serving: KeyPair
    proxy: Path


@dataclass(frozen=True)
class Credentials:
    """The cluster's authority and what it issued; ``serving`` is good for all servers of the control plane."""

    authority: CertificateAuthority
    server: Server
    admin: KeyPair
    admin_kubeconfig: Path
    serving: KeyPair
    kubelet_client: KeyPair
    tokens: KeyPair
    front_authority: Path
    front_client: KeyPair
    folder: Path

    @classmethod
    def issue(cls, folder: Path, *, address: Address, port: int, service_address: Address) -> Credentials:
        """Make them below ``folder`` for an API server at ``address``, inside the cluster at ``service_address``."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = CertificateAuthority(folder, name="coil-cluster")
        front_folder = folder / "front-proxy"
        front_folder.mkdir(exist_ok=True)
        front = CertificateAuthority(front_folder, name="coil-front-proxy")
        server = Server(url=f"https://{host_in_url(address)}:{port}", authority=authority.certificate)
        admin = authority.issue("admin", organization=ADMINISTRATORS)
        return cls(
            authority=authority,
            server=server,
            admin=admin,
            admin_kubeconfig=write_certificate_kubeconfig(folder / "admin.kubeconfig", server, admin),
            serving=authority.issue("kube-apiserver", hosts=[str(address), str(service_address), *SERVICE_HOSTS]),
            kubelet_client=authority.issue("kube-apiserver-kubelet-client", organization=ADMINISTRATORS),
            tokens=issue_signing_key(folder, "service-account"),
            front_authority=front.certificate,
            front_client=front.issue("front-proxy-client"),
            folder=folder,
        )

    def for_node(self, name: str, addresses: Iterable[Address] = ()) -> NodeCredentials:
        """What a node of that name needs to join the cluster; ``addresses`` are those its kubelet is asked at."""
        user = f"system:node:{name}"
        hosts = [name, *map(str, addresses)]
        return NodeCredentials(
            authority=self.authority.certificate,
            kubelet=self.kubeconfig(user, organization="system:nodes"),
            serving=self.authority.issue(user, hosts=hosts, file=f"kubelet-{name}"),
            proxy=self.kubeconfig("system:kube-proxy", file=f"kube-proxy-{name}"),
        )

    def kubeconfig(self, user: str, *, organization: str = "", file: str = "") -> Path:
        """A kubeconfig with a new client certificate for ``user``, in a file of its name unless ``file`` is given."""
        file = file or user.removeprefix("system:").replace(":", "-")
        identity = self.authority.issue(user, organization=organization, file=file)
        return write_certificate_kubeconfig(self.folder / f"{file}.kubeconfig", self.server, identity)
