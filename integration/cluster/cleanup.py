"""Takes a cluster off the machine, knowing nothing but its id: the last station of every cluster, however it ends.

Nothing here trusts a list that a crashed owner may not have finished writing. A cluster's traces carry its id by
construction, and are found by it:

* its own processes have ``MARKER=<id>`` in their environment, which children inherit (shims and CNI plugins too);
* containers' processes live in cgroups named by the containers, and containerd keeps a folder of each container, for as
  long as it exists, in the folder of its node;
* mounts that the host sees lie below the cluster's folder (a node's own are in its private mount namespace and go with
  its processes); the folder itself is named by the id;
* the link to the host is named ``coil-<id>``; the other links are in the cluster's network namespaces, and go with
  them.

Everything is idempotent, and two cleanups of one cluster at once are harmless.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from integration.cluster.audit_log import keep_calls
from integration.cluster.cache import clusters_root

MARKER = "COIL_CLUSTER"  # environment variable that marks the processes of a cluster
NETNS_LINKS = Path("/run/netns")  # where `ip netns` looks for names

_CONTAINERD_NAMESPACE = "k8s.io"  # of the kubelet's containers; in the paths of their cgroups as well
CONTAINERS = f"run/containerd/io.containerd.runtime.v2.task/{_CONTAINERD_NAMESPACE}"
"""Below a node's folder: one folder for each container from before its first process until after its last."""

_KILL_TIMEOUT = 60.0  # seconds in which killed processes must be gone
_SETTLE = 0.05  # seconds between two looks


class CleanupError(Exception):
    """Something of a cluster could not be removed; the message says what."""


def link_name(cluster: str) -> str:
    """The host's link into the cluster; fits IFNAMSIZ (15 characters)."""
    return f"coil-{cluster}"


def owner_lock(cluster: str) -> Path:
    """The file that a cluster's owner holds a lock on (flock(2)) for as long as it lives."""
    return clusters_root() / f"{cluster}.lock"


def netns_link(cluster: str, node: str) -> Path:
    """The name that ``ip netns`` and ``ip -n`` know the node's network namespace by."""
    return NETNS_LINKS / f"coil-{cluster}-{node}"


def remove_cluster(cluster: str) -> None:
    """Remove every trace of the cluster. Raises CleanupError, with the folder kept so that it can be tried again."""
    # Programs of the host first. The cluster's link goes with its namespaces: an API server that survives these for a
    # moment looks for its etcd by the machine's default route.
    here = _network_of(os.getpid())
    _kill_all(cluster, lambda: {pid for pid in marked_processes(cluster) if _network_of(pid) == here})
    flush_addresses(link_name(cluster))
    _kill_all(cluster, lambda: {*marked_processes(cluster), *container_processes(cluster)})
    for cgroup in cgroup_folders(cluster):
        _remove_cgroup(cgroup)
        # The parent is every containerd's; the last one out removes it.
        with suppress(OSError):
            cgroup.parent.rmdir()
    folder = clusters_root() / cluster
    for mount in mounts_below(folder):
        subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True, timeout=60)
    if left := list(mounts_below(folder)):
        raise CleanupError(f"cluster {cluster}: cannot unmount {', '.join(map(str, left))}")
    if (Path("/sys/class/net") / link_name(cluster)).exists():
        # It may go with its peer's namespace while we ask.
        subprocess.run(["ip", "link", "delete", link_name(cluster)], check=False, capture_output=True, timeout=60)
    for link in NETNS_LINKS.glob(f"coil-{cluster}-*"):
        link.unlink(missing_ok=True)
    keep_calls(cluster, folder)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    owner_lock(cluster).unlink(missing_ok=True)


def flush_addresses(link: str) -> None:
    """Take the addresses of a link away that is about to go. Idempotent.

    Of a link that goes, the kernel removes the routes first and the addresses a moment later: what it sends again in
    between, for a program that has ended, leaves by the default route.
    """
    subprocess.run(["ip", "address", "flush", "dev", link], check=False, capture_output=True, timeout=60)


def kill_node(cluster: str, node: str, *, network: int) -> None:
    """End all that runs on a node, its containers included, and remove their cgroups. Raises CleanupError.

    Its own processes are those in its network namespace, of which `network` is the inode.
    """

    def find() -> set[int]:
        own = {pid for pid in marked_processes(cluster) if _network_of(pid) == network}
        return own | set(container_processes(cluster, node))

    _kill_all(cluster, find)
    for cgroup in cgroup_folders(cluster, node):
        _remove_cgroup(cgroup)


def marked_processes(cluster: str) -> Iterator[int]:
    """The ids of the cluster's own processes; a zombie has no environment and does not count."""
    wanted = f"{MARKER}={cluster}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and wanted in _environment(int(entry.name)):
            yield int(entry.name)


def container_processes(cluster: str, node: str = "*") -> Iterator[int]:
    """The ids of the processes in the cluster's cgroups, or in those of one node."""
    for folder in cgroup_folders(cluster, node):
        # Leaves out what goes while it is listed.
        for inner, _, files in os.walk(folder):
            if "cgroup.procs" not in files:
                continue
            # ENODEV: the cgroup went between the listing and the reading.
            with suppress(OSError):
                # 0 stands for a process of an outer PID namespace.
                text = (Path(inner) / "cgroup.procs").read_text()
                yield from (int(line) for line in text.split() if line != "0")


def cgroup_folders(cluster: str, node: str = "*") -> list[Path]:
    """The cgroups of the cluster's containers, or of one node's, that exist, in each mounted hierarchy, v1 or v2."""
    containers = [path.name for path in (clusters_root() / cluster).glob(f"{node}/{CONTAINERS}/*")]
    points = [point for point, kind in _mounts() if kind in ("cgroup", "cgroup2")]
    folders = (point / _CONTAINERD_NAMESPACE / container for point in points for container in containers)
    return [folder for folder in folders if folder.is_dir()]


def mounts_below(folder: Path) -> Iterator[Path]:
    """Mount points at or below ``folder``, innermost first."""
    return (point for point, _ in reversed(list(_mounts())) if point.is_relative_to(folder))


def _mounts() -> Iterator[tuple[Path, str]]:
    """Mount point and file system type of each mount, in the order of mounting (proc(5), mountinfo)."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), before.split()[4])
        yield Path(point), after.split()[0]


def _environment(pid: int) -> list[bytes]:
    try:
        return (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or not ours to look at
        return []


def _network_of(pid: int) -> int:
    """The inode of a process's network namespace; 0 when it is gone, or not ours to look at."""
    try:
        return (Path("/proc") / str(pid) / "ns" / "net").stat().st_ino
    except OSError:
        return 0


def _kill_all(cluster: str, find: Callable[[], set[int]]) -> None:
    """SIGKILL until two looks in a row find nobody: in one, a process may be between fork and exec, unmarked."""
    deadline = time.monotonic() + _KILL_TIMEOUT
    quiet = 0
    while quiet < 2:
        found = find()
        quiet = 0 if found else quiet + 1
        for pid in found:
            _kill(pid, cluster)
        if time.monotonic() > deadline:
            raise CleanupError(f"cluster {cluster}: processes {sorted(found)} do not die")
        time.sleep(_SETTLE)


def _kill(pid: int, cluster: str) -> None:
    """Kill ``pid`` if it is the cluster's; it is pinned before it is looked at, so its number cannot be reused."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        mark = f"{MARKER}={cluster}".encode()
        if mark in _environment(pid) or pid in container_processes(cluster):
            with suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def _remove_cgroup(folder: Path) -> None:
    """Remove a cgroup and those in it; the kernel lets go of killed processes with a delay."""
    deadline = time.monotonic() + _KILL_TIMEOUT
    while True:
        try:
            for path, _, _ in os.walk(folder, topdown=False):
                with suppress(FileNotFoundError):
                    Path(path).rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise CleanupError(f"cannot remove the cgroup {folder}: {error}") from error
            time.sleep(_SETTLE)
        else:
            return
