"""The namespace behind a veth: found by the kernel's number for it, whoever keeps it alive, and never another."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coil.kernel.link import LinkName
from coil.netlink import peer_namespace
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.namespace import Namespace
from coil.netlink.nsid_message import get_netns_number
from coil.netlink.request import Request
from integration.netns.netns import Netns

pytestmark = pytest.mark.kernel

HOST_END = LinkName("veth0")


def find(host: Netns, name: LinkName = HOST_END) -> Namespace:
    def found() -> Namespace:
        with Connection() as connection:
            return peer_namespace.find_namespace(name, connection)

    return host.call(found)


def inode(path: Path) -> int:
    return path.stat().st_ino


def inode_behind(host: Netns, name: LinkName = HOST_END) -> int:
    with find(host, name) as namespace:
        return inode(Path(f"/proc/self/fd/{namespace.fileno()}"))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One in a namespace that nothing is mounted for."""
    command = ["unshare", "--net", "--", "sh", "-c", "echo ready; exec sleep infinity"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_one_of_many_that_are_mounted(host: Netns, new_netns: Callable[[], Netns]) -> None:
    pods = [new_netns() for _ in range(6)]
    for number, pod in enumerate(pods):
        host.ip("link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    for number, pod in enumerate(pods):
        assert inode_behind(host, LinkName(f"veth{number}")) == inode(pod.path)


def test_one_that_only_a_process_is_in(host: Netns, process: subprocess.Popen[bytes]) -> None:
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
    assert inode_behind(host) == inode(Path(f"/proc/{process.pid}/ns/net"))


def test_one_that_nothing_shows_any_more(host: Netns, pod: Netns) -> None:
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    with Namespace(pod.path):  # it lives on, but only as a file of this process
        pod.delete()
        with pytest.raises(NetlinkError, match=r"other end of veth0 is neither mounted below /run/netns or .* process"):
            find(host)


@pytest.mark.parametrize("kind", ["none", "dangling", "own"])
def test_links_without_an_end_elsewhere(host: Netns, kind: str) -> None:
    if kind == "own":
        host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0")
    if kind == "dangling":
        host.ip("link", "add", HOST_END, "type", "bridge")
    said = "there is no link veth0" if kind == "none" else "link veth0 has no other end in another namespace"
    with pytest.raises(NetlinkError, match=said):
        find(host)


def test_a_link_that_is_replaced_meanwhile_leads_nowhere(
    host: Netns, pod: Netns, new_netns: Callable[[], Netns], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = new_netns()
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", pod.name)

    def ask_after_replacement(fd: int) -> Request:
        if inode(Path(f"/proc/self/fd/{fd}")) == inode(pod.path):
            host.ip("link", "delete", HOST_END)
            host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", other.name)
        return get_netns_number(fd)

    monkeypatch.setattr(peer_namespace, "get_netns_number", ask_after_replacement)
    with pytest.raises(NetlinkError, match="veth0 was replaced while its other end was looked for"):
        find(host)


def test_no_descriptor_is_left_open(host: Netns, pod: Netns) -> None:
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    find(host).close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        find(host).close()
        with pytest.raises(NetlinkError):
            find(host, LinkName("lo"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
