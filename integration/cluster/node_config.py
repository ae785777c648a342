"""The configuration files of a node's components, rendered from what the node is. No input, no output.

Paths below /run are as the node sees them: its /run, /var/log and some kernel settings are its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import yaml

from integration.cluster.command_line import Version
from integration.cluster.family import ClusterFamilies
from integration.cluster.image import PAUSE_IMAGE
from integration.cluster.pki import KeyPair
from integration.cluster.proxy_mode import ProxyMode

CONTAINERD_SOCKET = "containerd/containerd.sock"  # below the node's /run
KUBELET_ROOT = "/run/kubelet"  # short: the kubelet makes Unix sockets below it
KUBELET_BUILT_IN_ROOT = Path("/var/lib/kubelet")
"""Where every kubelet deletes what it finds of device plugins, and makes its socket for them, whatever its root is."""

CNI_BIN_DIR = Path("/run/cni/bin")
CNI_CONF_DIR = Path("/run/cni/net.d")
"""The same on every node, as one DaemonSet installs the plugin on all of them."""

CLUSTER_DOMAIN = "cluster.local"

KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What the kubelet insists on below /proc/sys. It sees files that say so: the machine is not its own to change."""


class Snapshotter(StrEnum):
    """How containerd stacks image layers."""

    OVERLAY = "overlayfs"
    NATIVE = "native"  # copies; for file systems that carry no overlay


class OomScores(StrEnum):
    """Whether containers' OOM scores may go below containerd's own, which needs CAP_SYS_RESOURCE."""

    FREE = "false"
    RESTRICTED = "true"


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's name, its addresses and which of them it has, and where its files are."""

    name: str
    ipv4: IPv4Address
    ipv6: IPv6Address
    folder: Path
    families: ClusterFamilies


def render_containerd(
    node: Identity, *, version: Version, runc: Path, snapshotter: Snapshotter, oom_scores: OomScores
) -> str:
    """containerd's config.toml: version 3 for containerd 2, version 2 for the ones before."""

    def quote(value: object) -> str:
        return json.dumps(str(value))  # a TOML basic string, for what a path may have in it

    common = f"""root = {quote(node.folder / "containerd")}
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = {quote(f"/run/{CONTAINERD_SOCKET}")}

[plugins."io.containerd.internal.v1.opt"]
path = {quote(node.folder / "opt")}

"""
    if version < Version(2, 0):
        return f"""version = 2
{common}
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = {quote(PAUSE_IMAGE)}
restrict_oom_score_adj = {oom_scores.value}

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {quote(CNI_BIN_DIR)}
conf_dir = {quote(CNI_CONF_DIR)}

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = {quote(snapshotter.value)}
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = {quote(runc)}
"""
    return f"""version = 3
{common}
[plugins."io.containerd.cri.v1.images"]
snapshotter = {quote(snapshotter.value)}

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {quote(PAUSE_IMAGE)}

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = {oom_scores.value}

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{quote(CNI_BIN_DIR)}]
conf_dir = {quote(CNI_CONF_DIR)}

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {quote(runc)}

[plugins."io.containerd.nri.v1.nri"]
disable = true
"""


def render_kubelet(node: Identity, *, client_authority: Path, serving: KeyPair, version: Version) -> str:
    """The KubeletConfiguration: the node's health is told every second, nothing is evicted, nothing is reserved."""
    return _render(
        {
            **version.kubelet_settings,
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.families.unspecified,
            # Nothing answers there until somebody installs it.
            "clusterDNS": [str(node.families.dns_addresses[0])],
            "clusterDomain": CLUSTER_DOMAIN,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(client_authority)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "maxPods": 250,
            "resolvConf": str(node.folder / "resolv.conf"),
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "1m",
            "nodeLeaseDurationSeconds": 8,
            "syncFrequency": "10s",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
            "featureGates": version.feature_gates,
        }
    )


def render_proxy(
    node: str,
    *,
    kubeconfig: Path,
    mode: ProxyMode,
    feature_gates: dict[str, bool],
    min_sync_period: str = "1s",
    bind_address: str = "0.0.0.0",
) -> str:
    """The KubeProxyConfiguration of a node, without the settings that belong to the whole machine.

    kube-proxy writes its rules at most once in `min_sync_period`, a duration of Kubernetes' API.
    """
    return _render(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "bindAddress": bind_address,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "hostnameOverride": node,
            "mode": mode.value,
            mode.value: {"minSyncPeriod": min_sync_period},
            "oomScoreAdj": 0,
            # Read-only outside the first network namespace.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "featureGates": feature_gates,
        }
    )


def _render(document: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text
