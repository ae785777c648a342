"""Where network namespaces are mounted."""

from pathlib import Path

from coil.netlink.peer_namespace import namespace_mounts

MOUNTINFO = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
301 23 0:4 net:[4026532301] /run/netns/cni-1 rw shared:170 - nsfs nsfs rw
302 23 0:4 net:[4026532302] /run/containerd/io.containerd.grpc.v1.cri/netns/cni-2 rw - nsfs nsfs rw
303 23 0:4 net:[4026532303] /srv/with\040blank/cni-3 rw shared:7 master:1 - nsfs nsfs rw
304 23 0:4 mnt:[4026532304] /run/snapd/ns/lxd.mnt rw - nsfs nsfs rw
305 23 0:25 / /run rw - tmpfs net:[1] rw
nonsense
"""


def test_the_mounts_of_network_namespaces() -> None:
    assert list(namespace_mounts(MOUNTINFO)) == [
        Path("/run/netns/cni-1"),
        Path("/run/containerd/io.containerd.grpc.v1.cri/netns/cni-2"),
        Path("/srv/with blank/cni-3"),
    ]


def test_none() -> None:
    assert list(namespace_mounts("")) == []
