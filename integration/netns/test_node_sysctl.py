"""What Coil changes of a node's own settings is undone at the end, unless others have changed it or still need it."""

import io
import json
from pathlib import Path

import pytest

from coil.kernel.family import Family
from coil.kernel.link import Sysctl
from coil.netlink.error import NetlinkError
from coil.netlink.host import HostNetwork
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.overlay import OverlayNetwork
from coil_installer.main import report_restored
from integration.netns.netns import Netns
from integration.netns.plans import pod_plan

pytestmark = pytest.mark.kernel

IPV4, IPV6 = "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"
ACCEPT_RA = "net/ipv6/conf/up0/accept_ra"


@pytest.fixture
def node(host: Netns) -> Netns:
    """Nothing forwards yet, and the kernel listens to routers."""
    host.ip("link", "add", "up0", "type", "bridge")
    host.set_sysctl(IPV4, "0")
    host.set_sysctl(IPV6, "0")
    host.set_sysctl(ACCEPT_RA, "1")
    return host


def settings(node: Netns) -> tuple[str, str, str]:
    return node.sysctl(IPV4), node.sysctl(IPV6), node.sysctl(ACCEPT_RA)


def restore(node: Netns, *records: Path) -> str:
    """As `coil-installer restore-sysctls` does it; what it says."""
    out = io.StringIO()
    node.call(lambda: report_restored(records, out))
    return out.getvalue()


async def test_settings_are_what_they_were(node: Netns, tmp_path: Path) -> None:
    """Of coild, and of an agent that came later and found forwarding on; a second process does not know better."""
    coild, agent = tmp_path / "sysctls.json", tmp_path / "eip" / "sysctls.json"
    before = settings(node)
    for _ in range(2):
        async with HostNetwork(node.path, sysctls=NodeSysctls(coild)) as network:
            await network.ensure_forwarding(tuple(Family))
        async with OverlayNetwork(node.path, sysctls=NodeSysctls(agent)) as overlay:
            await overlay.ensure_sysctls(tuple(Family))
        node.set_sysctl(IPV6, "0")
    async with HostNetwork(node.path, sysctls=NodeSysctls(coild)) as network:
        await network.ensure_forwarding(tuple(Family))
    assert settings(node) == ("1", "1", "2")
    said = restore(node, coild, agent)
    assert settings(node) == before
    assert f"{IPV4} is 0 again" in said
    assert not coild.exists()
    assert restore(node, coild, agent) == ""


async def test_what_others_have_changed_since_is_theirs(node: Netns, tmp_path: Path) -> None:
    async with HostNetwork(node.path, sysctls=NodeSysctls(tmp_path / "record")) as network:
        await network.ensure_forwarding((Family.IPV6,))
    node.set_sysctl(ACCEPT_RA, "0")
    restore(node, tmp_path / "record")
    assert settings(node) == ("0", "0", "0")


async def test_a_node_goes_on_to_forward_while_pods_are_connected(node: Netns, pod: Netns, tmp_path: Path) -> None:
    """Of anybody: who came later found forwarding on, and relies on it."""
    record = tmp_path / "record"
    plan = pod_plan()
    async with HostNetwork(node.path, sysctls=NodeSysctls(record)) as network:
        await network.attach_pod(plan, pod.path)
        said = restore(node, record)
        assert settings(node) == ("1", "1", "2")
        assert f"{IPV6} remains 1, as pods are still connected" in said
        await network.detach_pod(plan.host.name)
    restore(node, record)
    assert settings(node) == ("0", "0", "1")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"net/ipv4/ip_forward": "1"}', '{"net/ipv4/ip_forward": {"before": 1}}']
)
async def test_a_damaged_record_changes_nothing(node: Netns, tmp_path: Path, text: str) -> None:
    record = tmp_path / "record"
    record.write_text(text)
    assert restore(node, record) == ""
    assert settings(node) == ("0", "0", "1")
    async with HostNetwork(node.path, sysctls=NodeSysctls(record)) as network:
        await network.ensure_forwarding((Family.IPV4,))
    restore(node, record)
    assert settings(node) == ("0", "0", "1")


async def test_nothing_is_changed_that_cannot_be_recorded(node: Netns, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with HostNetwork(node.path, sysctls=NodeSysctls(tmp_path / "file" / "record")) as network:
        with pytest.raises(NetlinkError, match="ip_forward not changed: cannot record what it was"):
            await network.ensure_forwarding((Family.IPV4,))
    assert settings(node) == ("0", "0", "1")


def test_a_record_that_somebody_has_forged_reaches_no_other_file(node: Netns, tmp_path: Path) -> None:
    target, record = tmp_path / "target", tmp_path / "record"
    target.write_text("mine")
    forged = {"before": "theirs", "written": "mine"}
    paths = [f"net/../../../{target.relative_to('/')}", str(target), f"../../{target.relative_to('/')}"]
    record.write_text(json.dumps(dict.fromkeys(paths, forged)))
    assert restore(node, record) == ""
    assert target.read_text() == "mine"


def test_a_setting_of_a_link_that_is_gone_is_passed_over(node: Netns, tmp_path: Path) -> None:
    record = tmp_path / "record"
    node.call(lambda: NodeSysctls(record).ensure([Sysctl(ACCEPT_RA, "2")]))
    node.ip("link", "delete", "up0")
    assert restore(node, record) == ""
    assert not record.exists()
