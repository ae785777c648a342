"""Sysctls written from a container: its own /proc/sys is read-only, the node's /proc/sys/net is mounted beside it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.netns.netns import Netns

pytestmark = pytest.mark.kernel

SWITCH = "net/ipv6/conf/all/forwarding"
CHILD = """
import sys
from pathlib import Path
from coil.kernel.link import Sysctl
from coil.netlink import sysctl
from coil.netlink.error import NetlinkError
from coil.netlink.namespace import Namespace

sysctl._WRITABLE = Path(sys.argv[2])
with Namespace.current() as home, Namespace(Path(sys.argv[1])) as pod, pod.entered(home):
    try:
        sysctl.ensure_sysctls([Sysctl(sys.argv[3], "1")])
    except NetlinkError as error:
        sys.exit(str(error))
"""
READ_ONLY = """
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
"""


def write_from_container(netns: Netns, mounted: Path, *, script: str) -> str:
    """What went wrong, if anything."""
    command = ["unshare", "--mount", "--propagation=private", "sh", "-euc", f'{script}\nexec "$@"', "sh"]
    command += [sys.executable, "-c", CHILD, str(netns.path), str(mounted), SWITCH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 or done.stderr, "it says why"
    return done.stderr


def forwards(netns: Netns) -> bool:
    command = ["ip", "netns", "exec", netns.name, "cat", f"/proc/sys/{SWITCH}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == "1"


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    return tmp_path


def test_a_container_writes_a_pods_sysctls_through_the_nodes_mount(
    new_netns: Callable[[], Netns], mounted: Path
) -> None:
    pod = new_netns()
    here = Path("/proc/sys", SWITCH).read_text()
    script = f"mount --bind /proc/sys/net {mounted}/net\n{READ_ONLY}"
    assert write_from_container(pod, mounted, script=script) == ""
    assert forwards(pod)
    assert Path("/proc/sys", SWITCH).read_text() == here, "it was the pod's, not the machine's"


def test_a_container_without_the_mount_is_told_what_to_do(new_netns: Callable[[], Netns], tmp_path: Path) -> None:
    pod = new_netns()
    said = write_from_container(pod, tmp_path, script=READ_ONLY)
    assert f"cannot set {SWITCH} to 1: Read-only file system" in said
    assert f"sysctl -w {SWITCH}=1" in said
    assert f"mount its /proc/sys/net at {tmp_path}/net" in said
    assert not forwards(pod)
