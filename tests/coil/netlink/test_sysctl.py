"""What is written below /proc/sys, and what is said where it cannot be."""

from pathlib import Path

import pytest

from coil.kernel.link import Sysctl
from coil.netlink import sysctl
from coil.netlink.error import NetlinkError

FORWARD = Sysctl("net/ipv4/ip_forward", "1")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree in the place of /proc/sys."""
    monkeypatch.setattr(sysctl, "_ROOT", tmp_path)
    (tmp_path / "net/ipv4").mkdir(parents=True)
    return tmp_path


def test_only_what_differs_is_written(tree: Path) -> None:
    file = tree / FORWARD.path
    file.write_text("0\n")
    sysctl.ensure_sysctls((FORWARD,))
    assert sysctl.read_sysctl(FORWARD.path) == "1"
    file.chmod(0o400)
    before = file.stat().st_mtime_ns
    sysctl.ensure_sysctls((FORWARD,))
    assert file.stat().st_mtime_ns == before


def test_the_error_names_the_sysctl_and_the_remedy(tree: Path) -> None:
    with pytest.raises(NetlinkError, match=r"cannot set net/ipv4/ip_forward to 1.*`sysctl -w net/ipv4/ip_forward=1`"):
        sysctl.ensure_sysctls((FORWARD,))
    assert sysctl.read_sysctl(FORWARD.path) is None


def test_a_kernel_without_ipv6_has_nothing_to_write(tree: Path) -> None:
    sysctl.ensure_sysctls((Sysctl("net/ipv6/conf/all/forwarding", "1"),))
