"""The command lines of the control plane's components. They differ between versions; the differences are all here."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from integration.cluster.credentials import Credentials
from integration.cluster.etcd import Etcd
from integration.cluster.family import SERVICES_IPV4, Address, ClusterFamilies


@dataclass(frozen=True, order=True, slots=True)
class Version:
    """A version of Kubernetes, or of containerd, as far as flags and settings depend on it."""

    major: int
    minor: int

    @classmethod
    @cache
    def of(cls, program: Path) -> Version:
        """The version that ``program`` reports about itself."""
        said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
        # Debian's containerd has no v before it.
        match = re.search(r"\bv?(\d+)\.(\d+)\.\d+", said)
        if match is None:
            raise ValueError(f"{program} --version says {said!r}, which has no version in it")
        return cls(int(match.group(1)), int(match.group(2)))

    @classmethod
    def parse(cls, text: str) -> Version:
        """The opposite of ``str``."""
        major, minor = text.split(".")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def feature_gates(self) -> dict[str, bool]:
        """Dual stack is on by default from 1.21 on, and its gate is unknown from 1.25 on."""
        return {"IPv6DualStack": True} if self < Version(1, 21) else {}

    @property
    def feature_gate_flags(self) -> list[str]:
        """The same as a flag."""
        return [f"--feature-gates={name}={str(value).lower()}" for name, value in self.feature_gates.items()]

    @property
    def kubelet_settings(self) -> dict[str, bool]:
        """From 1.35 on a kubelet refuses to run on cgroup v1 unless it is told."""
        return {"failCgroupV1": False} if self >= Version(1, 35) else {}

    @property
    def remote_runtime_flags(self) -> list[str]:
        """The kubelet had a container runtime of its own until 1.23, and the flag until 1.26."""
        return ["--container-runtime=remote"] if self < Version(1, 24) else []

    @property
    def insecure_port_flags(self) -> list[str]:
        """Controllers served plain HTTP as well until 1.22."""
        return ["--port=0"] if self < Version(1, 22) else []


def apiserver_command(
    program: Path,
    version: Version,
    credentials: Credentials,
    *,
    etcd: Etcd,
    address: Address,
    port: int,
    families: ClusterFamilies,
) -> list[str]:
    """kube-apiserver on ``address``:``port``, over ``etcd``."""
    loopback = address.is_loopback
    return [
        str(program),
        f"--bind-address={address}",
        f"--secure-port={port}",
        # Endpoints may not be loopback addresses; without nodes nobody follows them anyway.
        f"--advertise-address={SERVICES_IPV4.broadcast_address if loopback else address}",
        f"--endpoint-reconciler-type={'none' if loopback else 'lease'}",
        f"--etcd-servers={etcd.url}",
        f"--etcd-cafile={etcd.authority}",
        f"--etcd-certfile={etcd.client.certificate}",
        f"--etcd-keyfile={etcd.client.key}",
        f"--tls-cert-file={credentials.serving.certificate}",
        f"--tls-private-key-file={credentials.serving.key}",
        f"--client-ca-file={credentials.authority.certificate}",
        f"--kubelet-certificate-authority={credentials.authority.certificate}",
        f"--kubelet-client-certificate={credentials.kubelet_client.certificate}",
        f"--kubelet-client-key={credentials.kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={credentials.front_authority}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={credentials.front_client.certificate}",
        f"--proxy-client-key-file={credentials.front_client.key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={credentials.tokens.certificate}",
        f"--service-account-signing-key-file={credentials.tokens.key}",
        "--authorization-mode=Node,RBAC",
        # The second, which is not on everywhere, wants a right of whoever names an owner; programs must have it.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        "--allow-privileged=true",
        # Webhooks' Services are reached by their endpoints: there is no kube-proxy where this runs.
        "--enable-aggregator-routing=true",
        "--profiling=false",
        families.service_range_flag,
        *version.feature_gate_flags,
    ]


def controller_manager_command(
    program: Path,
    version: Version,
    credentials: Credentials,
    *,
    address: Address,
    port: int,
    families: ClusterFamilies = ClusterFamilies.IPV4_FIRST,
) -> list[str]:
    """kube-controller-manager; a node that falls silent is NotReady within seconds."""
    return [
        *_controller_command(
            program, version, credentials, address=address, port=port, user="system:kube-controller-manager"
        ),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={credentials.tokens.key}",
        f"--root-ca-file={credentials.authority.certificate}",
        # Pods get their addresses from Coil; nodes have no range of their own.
        "--allocate-node-cidrs=false",
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=8s",
        families.service_range_flag,
    ]


def scheduler_command(
    program: Path, version: Version, credentials: Credentials, *, address: Address, port: int
) -> list[str]:
    """kube-scheduler."""
    return _controller_command(program, version, credentials, address=address, port=port, user="system:kube-scheduler")


def _controller_command(
    program: Path, version: Version, credentials: Credentials, *, address: Address, port: int, user: str
) -> list[str]:
    kubeconfig = credentials.kubeconfig(user)
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={address}",
        f"--secure-port={port}",
        f"--tls-cert-file={credentials.serving.certificate}",
        f"--tls-private-key-file={credentials.serving.key}",
        "--leader-elect=false",
        "--profiling=false",
        *version.insecure_port_flags,
        *version.feature_gate_flags,
    ]
