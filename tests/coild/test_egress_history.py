"""Any history of pods, Egresses, Services, router pods and refusals: in the end each namespace, and who may send to it,
is as the last state of all says, and those that a history does not concern were never touched.
"""

import asyncio
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from tests.coild.egress_scene import EgressNode, egress, endpoints, pod, service
from tests.coild.virtual_loop import VirtualLoop, pass_turns

CONTAINERS = ("c1", "c2", "c3")
BYSTANDER = "bystander"
EGRESSES = ("world", "lab", "moon")

names = st.sets(st.sampled_from(EGRESSES))
destinations = st.lists(st.sampled_from(["0.0.0.0/0", "8.0.0.0/8", "9.0.0.0/8", "nonsense"]), max_size=3)
events = st.one_of(
    st.tuples(st.just("pod"), st.sampled_from(CONTAINERS), names),
    st.tuples(st.just("egress"), st.sampled_from(EGRESSES), st.tuples(destinations, st.booleans(), st.integers(1, 3))),
    st.tuples(st.just("service"), st.sampled_from(EGRESSES), st.sampled_from(["10.96.0.1", "10.96.0.2", "None"])),
    st.tuples(st.sampled_from(["no pod", "add", "del"]), st.sampled_from(CONTAINERS), st.none()),
    st.tuples(st.just("endpoints"), st.sampled_from(EGRESSES), st.sets(st.sampled_from(["10.2.0.1", "10.2.0.2"]))),
    st.tuples(st.sampled_from(["no egress", "no service", "no endpoints"]), st.sampled_from(EGRESSES), st.none()),
    st.tuples(st.just("refuse"), st.sampled_from(CONTAINERS), st.booleans()),
    st.tuples(st.sampled_from(["refuse table", "disturb table"]), st.just(""), st.booleans()),
    st.tuples(st.just("wait"), st.just(""), st.sampled_from([0.0, 0.01, 3.0])),
    st.tuples(st.just("restart"), st.just(""), st.none()),
)


class History:
    def __init__(self) -> None:
        self.node = EgressNode()
        self.refused: set[str] = set()
        self.attached: set[str] = set()
        self.adding: dict[str, asyncio.Task[None]] = {}

    async def run(self, history: list[tuple[str, str, Any]]) -> None:
        node = self.node
        node.kernel.fault = lambda path: NetlinkError("no") if path.name in self.refused else None
        node.kernel.delay = 0.005
        # What nobody's wishes concern: a pod without an annotation, and one whose Egress nothing happens to.
        node.pods.put(pod(BYSTANDER))
        node.egresses.put(egress("own", "7.0.0.0/8"))
        node.services.put(service("own", "10.96.0.7"))
        node.endpoints.put(endpoints("own", "10.2.0.7"))
        node.pods.put(pod("settled", names={"net": "own"}))
        for name in (BYSTANDER, "settled"):
            await node.add(self.attachment(name))
        await node.follow()
        assert node.take_syncs() == ["settled"]
        restarted = False
        for what, name, value in history:
            restarted |= what == "restart"
            await self.happen(what, name, value)
        self.refused.clear()
        self.node.table.error = None
        await asyncio.sleep(60)
        touched = set(self.node.take_syncs())
        assert restarted or not touched & {BYSTANDER, "settled"}
        self.check()
        # Nothing more to do: what is looked at again is left alone.
        for key in [self.node.attachment(name).key for name in self.attached]:
            await self.node.clients.refresh(key)
        assert self.node.take_syncs() == []
        await self.node.close()

    async def happen(self, what: str, name: str, value: Any) -> None:
        node = self.node
        match what:
            case "pod":
                node.pods.put(pod(name, names={"net": ",".join(value)} if value else {}, ips=(self.address(name),)))
            case "no pod":
                node.pods.remove(f"apps/{name}")
            case "egress":
                texts, auto, replicas = value
                node.egresses.put(egress(name, *texts, auto=auto, replicas=replicas))
            case "no egress":
                node.egresses.remove(f"net/{name}")
            case "service":
                node.services.put(service(name, value))
            case "no service":
                node.services.remove(f"net/{name}")
            case "refuse":
                (self.refused.add if value else self.refused.discard)(name)
            case "add":
                await self.add(name)
            case "del":
                self.attached.discard(name)
                await node.delete(self.attachment(name))
            case "restart":
                await self.restart()
            case "wait":
                await asyncio.sleep(value)
            case _:
                self.happen_to_routers(what, name, value)

    def happen_to_routers(self, what: str, name: str, value: Any) -> None:
        node = self.node
        match what:
            case "endpoints":
                node.endpoints.put(endpoints(name, *value))
            case "no endpoints":
                node.endpoints.remove(f"net/{name}-1")
            case "refuse table":
                node.table.error = NftError(doing="change", reason="no") if value else None
            case "disturb table":
                node.table.disturb(None)

    async def add(self, name: str) -> None:
        attachment = self.attachment(name)
        self.attached.add(name)
        try:
            await self.node.add(attachment)
        except Exception:
            self.attached.discard(name)
            await self.node.delete(attachment)

    async def restart(self) -> None:
        await self.node.close()
        await self.node.executor.wait_idle()
        self.node = EgressNode(self.node)
        await self.node.adopt(*(self.attachment(name) for name in (*sorted(self.attached), BYSTANDER, "settled")))
        await self.node.follow()
        await pass_turns()

    def attachment(self, name: str) -> Any:
        return self.node.attachment(name, ips=(self.address(name),))

    def address(self, name: str) -> str:
        others = {"settled": "10.1.0.7", BYSTANDER: "10.1.0.8"}
        return others.get(name, f"10.1.0.{name[-1]}")

    def check(self) -> None:
        node = self.node
        for name in self.attached:
            wanted = node.wanted(self.attachment(name))
            if wanted is not None:
                held = node.kernel.specs.get(Path("/run/netns") / name)
                assert (held.gateways if held else ()) == wanted.gateways
                # Never less: what an Egress was for is remembered by the client, and not by this look at the caches.
                assert not wanted.blocks or (held is not None and held.blocks)
                routers = {f"net/{name}": node.clients._egresses.routers(f"net/{name}") for name in EGRESSES}
                senders = {each for gateway in wanted.gateways for each in (*gateway.addresses, *routers[gateway.name])}
                tunnelled = held is not None and not held.is_empty
                assert node.peers(self.address(name)) == (sorted(map(str, senders)) if tunnelled else None)
        assert node.peers("10.1.0.7") == ["10.2.0.7", "10.96.0.7"]
        assert node.peers(self.address(BYSTANDER)) is None
        assert node.routes("settled") == {"10.96.0.7": ["7.0.0.0/8"]}
        assert node.routes(BYSTANDER) == {}


@given(st.lists(events, max_size=30))
@settings(max_examples=200, deadline=None)
def test_namespaces_follow_any_history(history: list[tuple[str, str, Any]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(History().run(history))
