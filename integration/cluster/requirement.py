"""What a cluster needs from the machine, asked before anything is made: one sentence for each thing that is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

COMMANDS = {
    "bird": "bird2",
    "birdc": "bird2",
    "busybox": "busybox-static",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "ip6tables": "iptables",
    "iptables": "iptables",
    "mount": "mount",
    "nsenter": "util-linux",
    "tc": "iproute2",
    "unshare": "util-linux",
}
"""Programs that run in a cluster, and the Debian package of each."""

CNI_PLUGINS = Path("/usr/lib/cni")  # containernetworking-plugins; the runtime itself executes `loopback`
CAP_SYS_RESOURCE = 24  # linux/capability.h

_FEATURES: dict[str, Sequence[str]] = {
    "veth": ("ip", "link", "add", "name", "veth0", "type", "veth", "peer", "name", "veth1"),
    "bridge": ("ip", "link", "add", "name", "veth0", "type", "bridge"),
    "IPv6": ("ip", "-6", "address", "add", "fd00::1/64", "dev", "lo"),
    "IPv4 NAT for iptables": ("iptables", "-t", "nat", "-S"),
    "IPv6 NAT for ip6tables": ("ip6tables", "-t", "nat", "-S"),
    "policy routing": ("ip", "rule", "add", "pref", "2000", "lookup", "116"),
}
"""Kernel features, and the command that fails in a namespace of its own where one is missing."""


class RequirementError(Exception):
    """The machine cannot run a cluster; the message says what is missing and what to do, one line for each."""


def check_requirements() -> None:
    """Raises RequirementError unless a cluster with nodes can run here. Changes nothing."""
    if os.geteuid() != 0:
        raise RequirementError("a cluster with nodes needs root, for namespaces, links and mounts; run it with sudo")
    if missing := list(_missing_programs()):
        raise RequirementError("\n".join(missing))
    check_namespaces()
    if missing := list(_missing_features()):
        raise RequirementError("\n".join(missing))


def check_namespaces() -> None:
    """Raises RequirementError where no namespaces can be made: nothing else can be tried there."""
    if problem := probe("true"):
        raise RequirementError(
            f"no network and mount namespaces can be made here ({problem}); "
            "run this on a machine or in a virtual machine with Debian's kernel, outside a restricted container"
        )


def _missing_programs() -> Iterator[str]:
    for command, package in COMMANDS.items():
        if shutil.which(command) is None:
            yield f"the command {command} is missing; install it: apt-get install {package}"
    if not (CNI_PLUGINS / "loopback").is_file():
        yield f"{CNI_PLUGINS / 'loopback'} is missing; install it: apt-get install containernetworking-plugins"


def _missing_features() -> Iterator[str]:
    for feature, command in _FEATURES.items():
        if problem := probe(*command):
            yield f"this kernel lacks {feature} ({problem}); load its module, or use a machine with Debian's kernel"
    if not any(" - cgroup" in line for line in Path("/proc/self/mountinfo").read_text().splitlines()):
        yield "no cgroup hierarchy is mounted; mount cgroup2 at /sys/fs/cgroup"
    if not Path("/dev/kmsg").exists():
        yield "/dev/kmsg is missing, which the kubelet reads; run on the machine itself or pass the device in"


def probe(*command: str) -> str:
    """What the command complains about in namespaces of its own; empty if it succeeds."""
    done = subprocess.run(
        ["unshare", "--net", "--mount", *command], check=False, capture_output=True, text=True, timeout=60
    )
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


def can_mount_overlay(folder: Path) -> bool:
    """Whether an overlay can be mounted on directories of ``folder``'s file system."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for part in ("lower", "upper", "work", "merged"):
            (Path(scratch) / part).mkdir()
        options = ",".join(f"{part}dir={scratch}/{part}" for part in ("lower", "upper", "work"))
        # The mount is in a namespace of its own, and gone with the process.
        probe = subprocess.run(
            ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, f"{scratch}/merged"],
            check=False,
            capture_output=True,
            timeout=60,
        )
    return probe.returncode == 0


def has_capability(number: int) -> bool:
    """Whether this process has the capability in effect (proc(5), CapEff)."""
    status = Path("/proc/self/status").read_text()
    [effective] = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(int(effective, 16) >> number & 1)
