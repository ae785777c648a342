"""Ports of type `openvswitch`, with Debian's Open vSwitch."""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from coil.ipam.occupancy import ContainerId
from coil.kernel.link import LinkName
from coild.model.port_error import BindError, BindTimeoutError
from coild.neutron.openvswitch import OWNER, OpenVSwitchBinding, node_links
from integration.netns.netns import Netns, ping
from integration.netns.open_vswitch import OpenVSwitch
from integration.netns.port_world import RED, make_pod, port_of
from integration.vm.run import INSIDE_VARIABLE
from tests.coild.neutron.binding_contract import SECONDS, BindingContract, BindingStage, binding

pytestmark = pytest.mark.kernel

LOG = structlog.get_logger()
LINKS = (binding(1).ifname, binding(2).ifname, LinkName("veth99999999"))


@pytest.fixture
def switch(new_netns: Callable[[], Netns], tmp_path: Path) -> Iterator[OpenVSwitch]:
    with OpenVSwitch.start(new_netns(), tmp_path) as switch:
        yield switch


def open_binding(switch: OpenVSwitch) -> OpenVSwitchBinding:
    """As a process on the node has it."""
    return OpenVSwitchBinding(switch.socket, links=lambda: switch.netns.call(node_links), log=LOG)


class SwitchStage:
    """A `BindingStage`: the links are there, as the wiring has made them."""

    def __init__(self, switch: OpenVSwitch) -> None:
        self.switch = switch
        for number, name in enumerate(LINKS):
            switch.netns.ip("link", "add", name, "type", "veth", "peer", "name", f"pod{number}")
            switch.netns.ip("link", "set", name, "up")

    def new(self) -> OpenVSwitchBinding:
        return open_binding(self.switch)

    def plugged(self) -> Collection[tuple[str, str, str]]:
        ports = self.switch.ports()
        rows = self.switch.rows("Interface", "name", "external_ids")
        found = [(row["name"], dict(row["external_ids"][1])) for row in rows if row["name"] in ports]
        return [(ids["iface-id"], name, ids[OWNER]) for name, ids in found]

    def obstruct(self) -> None:
        for name in LINKS:
            self.switch.netns.ip("link", "delete", name)

    async def delay(self) -> Callable[[], Coroutine[Any, Any, None]]:
        self.switch.pause()

        async def hangs() -> None:
            while not await asyncio.to_thread(self.plugged):  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)

        return hangs


@pytest.mark.skipif(INSIDE_VARIABLE not in os.environ, reason="here the datapath is in user space")
def test_the_datapath_is_in_the_kernel(switch: OpenVSwitch) -> None:
    # The link that stands for the datapath of all bridges.
    assert "ovs-system" in switch.netns.link_names()


class TestContract(BindingContract):
    @pytest.fixture
    def stage(self, switch: OpenVSwitch) -> BindingStage:
        return SwitchStage(switch)


async def test_pods_reach_each_other_by_the_switch(switch: OpenVSwitch, new_netns: Callable[[], Netns]) -> None:
    """Without Neutron's agent the bridge is an ordinary switch."""
    made = open_binding(switch)
    pods = [make_pod(new_netns, switch.netns, port_of(RED, number)) for number in (5, 6)]
    for pod in pods:
        await made.bind(pod.binding, timeout=SECONDS)
    for address in (pods[1].ipv4, pods[1].ipv6):
        # Nothing that leaves its checksum to a network card: a switch in user space is none.
        await asyncio.to_thread(ping, pods[0].netns, str(address))
    ids = {row["name"]: dict(row["external_ids"][1]) for row in switch.rows("Interface", "name", "external_ids")}
    port = pods[0].binding.port
    assert ids[pods[0].binding.ifname] == {
        **{"iface-id": port.port, "attached-mac": port.mac, "iface-status": "active", "vm-uuid": port.pod_uid},
        OWNER: pods[0].binding.endpoint,
    }
    configs = {row["name"]: dict(row["other_config"][1]) for row in switch.rows("Port", "name", "other_config")}
    assert configs[pods[0].binding.ifname] == {"transient": "true"}, "forgotten at the next boot"


async def test_ports_without_a_link_are_deleted_and_what_others_have_stays(switch: OpenVSwitch) -> None:
    stage = SwitchStage(switch)
    for number in (1, 2):
        await stage.new().bind(binding(number), timeout=SECONDS)
    switch.netns.ip("link", "add", "others", "type", "veth", "peer", "name", "others-peer")
    for name in (LINKS[2], "others"):
        switch.vsctl("add-port", "br-int", name)
    for name in (LINKS[0], "others"):
        switch.netns.ip("link", "delete", name)
    # Whose journal was lost does not know its running pods.
    await stage.new().prepare([])
    assert switch.ports() == {LINKS[1], LINKS[2], "others"}


async def test_a_link_that_has_become_another_ports_stays(switch: OpenVSwitch) -> None:
    stage = SwitchStage(switch)
    made = stage.new()
    await made.bind(binding(1), timeout=SECONDS)
    other = replace(binding(2), ifname=binding(1).ifname, endpoint=ContainerId("other"))
    await made.bind(other, timeout=SECONDS)
    await made.unbind(binding(1), timeout=SECONDS)
    assert {port for port, _, _ in stage.plugged()} == {other.port.port}


async def test_what_is_not_there_is_told(switch: OpenVSwitch, tmp_path: Path) -> None:
    stage = SwitchStage(switch)
    made = stage.new()
    absent = OpenVSwitchBinding(tmp_path / "absent.sock", log=LOG)
    await absent.prepare([])
    with pytest.raises(BindError, match=r"no Open vSwitch at .*absent.sock"):
        await absent.prepare([binding(1)])
    with pytest.raises(BindError, match="has no bridge br-other: is Neutron's agent installed"):
        await OpenVSwitchBinding(switch.socket, bridge="br-other", log=LOG).bind(binding(1), timeout=SECONDS)
    switch.pause()
    with pytest.raises(BindTimeoutError, match="within 1 s: is ovs-vswitchd running") as caught:
        await made.bind(binding(1), timeout=1.0)
    assert caught.value.undone
    assert switch.ports() == set()
