"""The namespace behind a veth: found by the kernel's number for it, whoever keeps it alive, and never another."""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coil.kernel.link import LinkName
from coil.netlink import peer_namespace
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.namespace import Namespace, get_netns_number
from coil.netlink.wire import Request
from coil.podnet.host_link import PodAlias, render_alias
from integration.netns.netns import Netns

pytestmark = pytest.mark.kernel

HOST_END = LinkName("veth0")


def find(host: Netns, name: LinkName = HOST_END) -> Namespace:
    def found() -> Namespace:
        with Connection() as connection:
            return peer_namespace.PeerNamespaces().open_peer(name, connection)

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


def test_one_that_a_runtime_keeps_in_a_folder_of_its_own(host: Netns, tmp_path: Path) -> None:
    """As containerd does with netns_mounts_under_state_dir."""
    place = tmp_path / "io.containerd.grpc.v1.cri" / "a name"
    place.parent.mkdir()
    place.touch()
    subprocess.run(["unshare", "--net", "--", "mount", "--bind", "/proc/self/ns/net", place], check=True, timeout=60.0)
    try:
        subprocess.run(
            ["nsenter", f"--net={place}", "--", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", HOST_END],
            check=True,
            timeout=60.0,
        )
        command = ["nsenter", f"--net={place}", "--", "ip", "link", "set", HOST_END, "netns", host.name]
        subprocess.run(command, check=True, timeout=60.0)
        assert inode_behind(host) == inode(place)
    finally:
        subprocess.run(["umount", place], check=True, timeout=60.0)


def test_one_that_only_a_process_is_in(host: Netns, process: subprocess.Popen[bytes]) -> None:
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
    assert inode_behind(host) == inode(Path(f"/proc/{process.pid}/ns/net"))


def test_one_that_nothing_shows_any_more(host: Netns, pod: Netns) -> None:
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    with Namespace(pod.path):  # it lives on, but only as a file of this process
        pod.delete()
        with pytest.raises(NetlinkError, match=r"other end of veth0 is neither mounted where .* process"):
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


@pytest.mark.parametrize("count", [1, 10, 100])
def test_pods_found_again_cost_one_dump_of_links_and_one_scan(
    host: Netns, new_netns: Callable[[], Netns], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """What coild does after a start, for as many pods as there are: nothing is dumped or searched for each of them."""
    pods = {PodAlias("default", f"c{number}", "eth0"): new_netns() for number in range(count)}
    for number, (alias, pod) in enumerate(pods.items()):
        host.ip_batch(
            [
                f"link add pod{number} type veth peer name eth0 netns {pod.name}",
                f"link set pod{number} alias {render_alias(alias)}",
            ]
        )
    clients = list(pods)[::3]
    for alias in clients:
        pods[alias].ip("link", "add", "marker", "type", "veth", "peer", "name", "other")
    dumps, scans, requests = Counter[str](), Counter[Path](), Counter[str]()

    def counted(real: Callable[..., object], count: Callable[..., None]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            count(*arguments)
            return real(*arguments, **named)

        return call

    for name, counter in (("dump", dumps), ("get", requests)):
        real = getattr(Connection, name)
        take = lambda _self, request, *_, counter=counter: counter.update([" ".join(map(str, request.doing[:2]))])  # noqa: E731
        monkeypatch.setattr(Connection, name, counted(real, take))
    for look in ("iterdir", "read_text"):
        monkeypatch.setattr(Path, look, counted(getattr(Path, look), lambda path, *_: scans.update([path])))

    def restart() -> dict[PodAlias, int]:
        peers = peer_namespace.PeerNamespaces()
        with Connection() as connection:
            assert peer_namespace.pods_with_link([LinkName("marker"), LinkName("none")], connection) == {*clients}
            inodes = {}
            for alias in pods:
                namespace = peers.open_pod(alias, connection)
                assert namespace is not None
                with namespace:
                    inodes[alias] = inode(Path(f"/proc/self/fd/{namespace.fileno()}"))
            return inodes

    assert host.call(restart) == {alias: inode(pod.path) for alias, pod in pods.items()}
    assert dumps == {"list links": 2}, "one for the question which pods are clients, one to find them"
    assert scans == {Path("/proc/self/mountinfo"): 1}, "all are mounted"
    assert sum(requests.values()) < 8 * count + 3 * len(list(Path("/run/netns").iterdir()))


def test_what_is_remembered_of_a_pod_is_never_believed(host: Netns, new_netns: Callable[[], Netns]) -> None:
    """Its link's name and its namespace's path become another's."""
    alias, other = PodAlias("default", "c1", "eth0"), PodAlias("default", "c2", "eth0")
    peers = peer_namespace.PeerNamespaces()

    def behind(alias: PodAlias) -> int | None:
        def find() -> int | None:
            with Connection() as connection:
                namespace = peers.open_pod(alias, connection)
            if namespace is None:
                return None
            with namespace:
                return inode(Path(f"/proc/self/fd/{namespace.fileno()}"))

        return host.call(find)

    first, second = new_netns(), new_netns()
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", first.name)
    host.ip("link", "set", HOST_END, "alias", render_alias(alias))
    assert behind(alias) == inode(first.path)
    # The same name for another pod's link; then the first one again, elsewhere.
    host.ip("link", "delete", HOST_END)
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", second.name)
    host.ip("link", "set", HOST_END, "alias", render_alias(other))
    assert behind(alias) is None
    assert behind(other) == inode(second.path)
    host.ip("link", "add", "veth1", "type", "veth", "peer", "name", "eth1", "netns", second.name)
    host.ip("link", "set", "veth1", "alias", render_alias(alias))
    assert behind(alias) == inode(second.path)
    # The path of a namespace that is gone leads to a new one.
    first_inode = inode(first.path)
    first.delete()
    subprocess.run(["ip", "netns", "add", first.name], check=True, timeout=60)
    host.ip("link", "add", "veth2", "type", "veth", "peer", "name", "eth0", "netns", first.name)
    host.ip("link", "set", "veth1", "alias", "")
    host.ip("link", "set", "veth2", "alias", render_alias(alias))
    assert behind(alias) == inode(first.path) != first_inode


def test_no_descriptor_is_left_open(host: Netns, pod: Netns) -> None:
    host.ip("link", "add", HOST_END, "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    find(host).close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        find(host).close()
        with pytest.raises(NetlinkError):
            find(host, LinkName("lo"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
