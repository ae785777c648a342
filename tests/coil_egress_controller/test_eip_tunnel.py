"""An EgressTunnel for each Node: made, filled in, kept apart from all others, and gone with its Node."""

import msgspec

from coil.crd.builtin import NODES, Node
from coil.crd.egress_tunnel import EGRESS_TUNNELS, EgressTunnel
from coil.kube.errors import UnavailableError
from tests.coil_egress_controller.eip_world import World, play


def tunnel(world: World, name: str) -> EgressTunnel:
    return msgspec.convert(world.document(EGRESS_TUNNELS, name), EgressTunnel)


def complete(world: World, *names: str) -> bool:
    return all(world.api.find_document(EGRESS_TUNNELS, name) and tunnel(world, name).status.phase for name in names)


def test_a_tunnel_is_made_for_each_node_and_says_what_the_node_says() -> None:
    async def script(world: World) -> None:
        world.lead()
        addresses = [
            {"type": "InternalIP", "address": "192.0.2.7"},
            {"type": "InternalIP", "address": "2001:db8::7"},
            {"type": "Hostname", "address": "n1"},
        ]
        world.add_node("n1", agent=False, addresses=addresses)
        world.change(NODES, "n1", spec={"podCIDRs": ["10.244.1.0/24", "fd00:244:1::/64"]})
        world.add_node("n2", agent=False)
        await world.until(lambda: complete(world, "n1", "n2"))
        status, other = tunnel(world, "n1").status, tunnel(world, "n2").status
        assert (status.phase, status.mark, other.mark) == ("Init", "0x26000100", "0x26000200")
        assert (status.tunnel.ipv4, status.tunnel.ipv6) == ("172.31.0.1", "fd11::1")
        assert status.tunnel.mac != other.tunnel.mac
        assert status.node_addresses == ("192.0.2.7", "2001:db8::7")
        assert status.pod_cidrs == ("10.244.1.0/24", "fd00:244:1::/64")
        world.change(NODES, "n1", status={"addresses": addresses[:1]})
        await world.until(lambda: tunnel(world, "n1").status.node_addresses == ("192.0.2.7",))
        # A node may set its pod CIDRs itself where nobody has, and policies do not apply to what is sent there.
        world.change(NODES, "n1", spec={"podCIDRs": ["0.0.0.0/1", "fd00:244:1::/64"]})
        await world.until(lambda: tunnel(world, "n1").status.pod_cidrs == ("fd00:244:1::/64",))
        with world.no_writes("egresstunnels"):
            await world.rest(22)

    play(script)


def test_what_the_agent_writes_stays_and_what_others_write_does_not() -> None:
    async def script(world: World) -> None:
        world.lead()
        world.add_node("n1", agent=False)
        await world.until(lambda: complete(world, "n1"))
        before = tunnel(world, "n1")
        parent = {"name": "eth0", "ipv4": "192.0.2.1/24"}
        status = world.document(EGRESS_TUNNELS, "n1")["status"]
        status = status | {
            "phase": "Ready",
            "mark": "0x26999900",
            "tunnel": status["tunnel"] | {"parent": parent, "mac": ""},
        }
        world.change(EGRESS_TUNNELS, "n1", status=status)
        await world.until(lambda: tunnel(world, "n1").status.tunnel.mac == before.status.tunnel.mac)
        after = tunnel(world, "n1").status
        assert (after.phase, after.tunnel.parent.name) == ("Ready", "eth0")
        assert after.mark == "0x26999900", "as good as any"

    play(script)


def test_marks_survive_a_new_leader_and_are_never_shared() -> None:
    async def script(world: World) -> None:
        world.lead()
        for name in ("n1", "n2", "n3"):
            world.add_node(name, agent=False)
        await world.until(lambda: complete(world, "n1", "n2", "n3"))
        marks = {name: tunnel(world, name).status.mark for name in ("n1", "n3")}
        await world.depose()
        world.api.remove(NODES, "n2")
        world.look()
        world.lead()
        await world.until(lambda: world.api.find_document(EGRESS_TUNNELS, "n2") is None)
        world.add_node("n4", agent=False)
        await world.until(lambda: complete(world, "n4"))
        assert {name: tunnel(world, name).status.mark for name in marks} == marks
        assert tunnel(world, "n4").status.mark == "0x26000200"

    play(script)


def test_a_new_leader_does_not_allocate_from_a_stale_cache() -> None:
    async def script(world: World) -> None:
        world.lead()
        world.add_node("n1", agent=False)
        await world.until(lambda: complete(world, "n1"))
        await world.depose()
        world.following.clear()
        live = world.document(EGRESS_TUNNELS, "n1")
        world.change(EGRESS_TUNNELS, "n1", status=live["status"] | {"mark": "0x26000200"})
        world.lead()
        await world.rest(3)
        assert world.api.find_document(EGRESS_TUNNELS, "n2") is None
        world.following.set()
        world.add_node("n2", agent=False)
        await world.until(lambda: complete(world, "n2"))
        assert tunnel(world, "n2").status.mark == "0x26000100"

    play(script)


def test_a_tunnel_is_made_again_while_its_node_lives() -> None:
    async def script(world: World) -> None:
        world.lead()
        world.add_node("n1", agent=False)
        await world.until(lambda: complete(world, "n1"))
        uid = tunnel(world, "n1").metadata.uid
        world.api.remove(EGRESS_TUNNELS, "n1")
        await world.until(lambda: complete(world, "n1"))
        assert tunnel(world, "n1").metadata.uid != uid

    play(script)


def test_a_node_that_only_the_cache_lacks_keeps_its_tunnel() -> None:
    async def script(world: World) -> None:
        world.add_node("n1", agent=False)
        world.lead()
        await world.until(lambda: complete(world, "n1"))
        await world.depose()
        node = world.document(NODES, "n1")
        world.api.remove(NODES, "n1")
        world.look()
        world.following.clear()
        world.api.put(NODES, node)
        world.lead()
        await world.rest(2)
        assert world.api.find_document(EGRESS_TUNNELS, "n1") is not None
        assert ("delete", "egresstunnels") not in world.client.writes()

    play(script)


def test_one_refusal_holds_up_no_other_tunnel() -> None:
    async def script(world: World) -> None:
        world.lead()
        world.client.refusals["patch status", "egresstunnels"] = UnavailableError("busy")
        for name in ("n1", "n2"):
            world.add_node(name, agent=False)
        await world.until(lambda: all(world.api.find_document(EGRESS_TUNNELS, name) for name in ("n1", "n2")))
        await world.rest(0.1)
        world.client.refusals.clear()
        await world.until(lambda: complete(world, "n1", "n2"))

    play(script)


def test_a_silent_gateway_whose_node_kubernetes_has_given_up_is_told_as_not_ready() -> None:
    async def script(world: World) -> None:
        world.add_namespace("shop")
        world.add_node("n1")
        world.add_gateway()
        world.lead()
        await world.until(lambda: complete(world, "n1") and tunnel(world, "n1").status.phase == "Ready")
        await world.agents["n1"].kill()
        await world.until(lambda: tunnel(world, "n1").status.phase == "HeartbeatTimeout")
        node = msgspec.convert(world.document(NODES, "n1"), Node)
        ready = [{"type": "Ready", "status": "Unknown"}]
        world.change(NODES, "n1", status=msgspec.to_builtins(node.status) | {"conditions": ready})
        await world.until(lambda: tunnel(world, "n1").status.phase == "NodeNotReady")
        assert world.gateway().status.node_list[0].status in {"HeartbeatTimeout", "NodeNotReady"}
        ready = [{"type": "Ready", "status": "True"}]
        world.change(NODES, "n1", status=msgspec.to_builtins(node.status) | {"conditions": ready})
        await world.until(lambda: tunnel(world, "n1").status.phase == "HeartbeatTimeout")

    play(script)
