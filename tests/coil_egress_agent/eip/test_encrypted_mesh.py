"""The mesh in WireGuard: what a node makes, tells and believes."""

from ipaddress import ip_address
from typing import Any

import msgspec
import pytest
import structlog

from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.names import NodeName
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import Family
from coil.kernel.wireguard import WIREGUARD_LINK, WireGuard
from coil_egress_agent.eip.main import mesh_options, table_options
from coil_egress_agent.eip.mesh import MeshError, MeshOptions, MeshSync, plan_end, plan_peers
from coil_egress_agent.eip.tunnel_report import MeshReport, TunnelReporter, plan_report
from tests.coil_egress_agent.eip.memory_node import KEYS, PARENT, Journal, MemoryOverlay
from tests.coil_egress_agent.eip.node_scene import NODE, tunnel
from tests.coil_egress_agent.eip.test_parts import NOW, read_settings

OPTIONS = MeshOptions(vni=100, port=7789, wireguard_port=7790)


def keyed(number: int, key: str | None = None) -> EgressTunnel:
    """Complete, with the key of that number."""
    whole = tunnel(number)
    end = msgspec.structs.replace(whole.status.tunnel, public_key=KEYS[number] if key is None else key)
    return msgspec.structs.replace(whole, status=msgspec.structs.replace(whole.status, tunnel=end))


def nodes(peers: tuple[Peer, ...]) -> list[str]:
    return [peer.node for peer in peers]


def test_links_and_table_agree_on_what_is_encrypted() -> None:
    plain = read_settings()
    assert (mesh_options(plain).wireguard_port, table_options(plain).wireguard) == (None, None)
    encrypted = read_settings("--tunnel-encryption=wireguard", "--wireguard-port=7000")
    assert (mesh_options(encrypted).wireguard_port, table_options(encrypted).wireguard) == (7000, WIREGUARD_LINK)


def test_only_nodes_with_keys_are_peers_where_all_is_encrypted_and_only_those_without_where_nothing_is() -> None:
    tunnels = [keyed(2), tunnel(3), keyed(4, "no key")]
    assert nodes(plan_peers(tunnels, node=NODE, encrypted=True)) == ["n2"]
    assert nodes(plan_peers(tunnels, node=NODE)) == ["n3"]


def test_packets_come_from_the_tunnel_addresses_of_peers() -> None:
    [peer] = plan_peers([keyed(2)], node=NODE, encrypted=True)
    assert peer.addresses == (ip_address("172.31.0.2"),)
    assert peer.parent == (ip_address("10.6.0.2"),)


def test_nobody_takes_anothers_place_by_naming_its_key() -> None:
    tunnels = [keyed(2, KEYS[3]), keyed(3)]
    owners = {KEYS[3]: ip_address("172.31.0.3")}
    assert nodes(plan_peers(tunnels, node=NODE, encrypted=True, owners=owners)) == ["n3"]


async def test_a_key_stays_with_the_node_that_had_it() -> None:
    scene = Scene()
    await scene.sync()
    for mesh in (scene.mesh, scene.new_mesh()):
        assert nodes(await mesh.choose_peers([keyed(3)], node=NODE)) == ["n3"]
        assert nodes(await mesh.choose_peers([keyed(2, KEYS[3]), keyed(3)], node=NODE)) == ["n3"]
    started = scene.new_mesh()
    assert nodes(await started.choose_peers([keyed(2, KEYS[3]), keyed(3)], node=NODE)) == ["n3"]


async def test_an_agent_starts_even_if_the_kernel_does_not_tell_who_had_which_key() -> None:
    scene = Scene()
    scene.journal.refuse = {"read wireguard peers"}
    assert nodes(await scene.mesh.choose_peers([keyed(2), keyed(3)], node=NODE)) == ["n2", "n3"]


def test_the_own_end() -> None:
    end = plan_end(keyed(1).status, underlay=ip_address("10.6.0.1"), parent=PARENT, options=OPTIONS)
    assert end.wireguard == WireGuard(name=WIREGUARD_LINK, port=7790, mtu=1440)
    assert (str(end.vxlan.local), end.vxlan.mtu, end.vxlan.parent) == ("172.31.0.1", 1390, "eth0")
    [peer] = plan_peers([keyed(2)], node=NODE, encrypted=True)
    [overlay] = end.overlay_peers([peer])
    assert (overlay.underlay, overlay.mac) == (ip_address("172.31.0.2"), peer.mac)
    [wireguard] = end.wireguard_peers([peer])
    assert (wireguard.endpoint, wireguard.port, wireguard.key) == (ip_address("10.6.0.2"), 7790, KEYS[2])
    assert wireguard.address == ip_address("172.31.0.2")


def test_what_has_no_address_of_the_families_in_use_is_not_reached() -> None:
    [peer] = plan_peers([keyed(2)], node=NODE, encrypted=True)
    assert peer.wireguard(Family.IPV6, port=7790) is None
    assert peer.overlay(Family.IPV6) is None


def test_an_end_without_an_ipv4_address_in_the_tunnel_network_is_none() -> None:
    status = keyed(1).status
    status = msgspec.structs.replace(status, tunnel=msgspec.structs.replace(status.tunnel, ipv4=""))
    with pytest.raises(MeshError, match="no IPv4 address"):
        plan_end(status, underlay=ip_address("10.6.0.1"), parent=PARENT, options=OPTIONS)


@pytest.mark.parametrize(
    ("said", "key", "patched"),
    [("", KEYS[1], KEYS[1]), (KEYS[1], KEYS[1], None), (KEYS[1], KEYS[2], KEYS[2]), (KEYS[1], None, "")],
)
def test_the_key_is_told(said: str, key: Any, patched: str | None) -> None:
    patch = plan_report(keyed(1, said), MeshReport(working=True, key=key), now=NOW)
    assert patch is not None  # the phase
    assert patch["status"].get("tunnel") == (None if patched is None else {"publicKey": patched})


class Scene:
    def __init__(self, options: MeshOptions = OPTIONS) -> None:
        self.journal = Journal()
        self.overlay = MemoryOverlay(self.journal)
        self.own = tunnel(1)
        self.peers = plan_peers([keyed(2), keyed(3)], node=NODE, encrypted=options.wireguard_port is not None)

        async def patch(_name: str, body: Any) -> EgressTunnel:
            raise AssertionError(body)

        log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
        self.reporter = TunnelReporter(patch, lambda: self.own, node=NODE, log=log)
        self._log = log
        self.mesh = self.new_mesh(options)

    def new_mesh(self, options: MeshOptions = OPTIONS) -> MeshSync:
        """Of an agent that starts."""
        return MeshSync(self.overlay, self.reporter, options=options, log=self._log)

    async def sync(self, *, look: bool = False) -> list[NodeName]:
        self.journal.clear()
        found = await self.mesh.sync(self.own, self.peers, carrier=False, look=look)
        return [peer.node for peer in found]

    @property
    def report(self) -> MeshReport | None:
        return self.reporter._report


async def test_links_and_peers_are_made_and_the_key_is_told() -> None:
    scene = Scene()
    assert await scene.sync() == ["n2", "n3"]
    assert [peer.key for peer in scene.overlay.wireguard_peers] == [KEYS[2], KEYS[3]]
    assert {str(peer.underlay) for peer in scene.overlay.peers} == {"172.31.0.2", "172.31.0.3"}
    assert scene.report == MeshReport(working=True, parent=PARENT, key=KEYS[0])
    assert await scene.sync() == ["n2", "n3"]
    assert scene.journal.calls() == []


async def test_a_link_that_was_removed_gets_another_key_and_its_peers_again() -> None:
    scene = Scene()
    await scene.sync()
    await scene.overlay.remove_wireguard()
    await scene.sync(look=True)
    assert len(scene.overlay.wireguard_peers) == 2
    assert scene.report == MeshReport(working=True, parent=PARENT, key=KEYS[1])


async def test_without_wireguard_there_is_no_mesh_and_nothing_goes_unencrypted() -> None:
    scene = Scene()
    scene.journal.refuse = {"wireguard"}
    assert await scene.sync() == []
    assert scene.overlay.tunnel is None
    assert (scene.mesh.working, scene.mesh.trouble) == (False, "wireguard: no")
    assert scene.report == MeshReport(working=False, parent=PARENT)


async def test_a_mesh_that_is_no_longer_encrypted_leaves_no_key() -> None:
    scene = Scene()
    await scene.sync()
    plain = Scene(MeshOptions(vni=100, port=7789))
    plain.overlay.wireguard = scene.overlay.wireguard
    await plain.sync()
    assert plain.overlay.wireguard is None
    assert plain.report == MeshReport(working=True, parent=PARENT)
