"""What router pods are told of a node's clients: as few writes as there are changes, however late the cache is."""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Final

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from coil.crd.builtin import NODES, Node
from coil.crd.egress import CLIENT_EGRESSES
from coil.crd.egress_client_slice import (
    EGRESS_CLIENT_SLICES,
    MAX_ADDRESSES,
    TOO_MANY_CLIENTS,
    EgressClientSlice,
    slice_name,
)
from coil.crd.meta import ObjectMeta
from coil.crd.names import LABEL_EGRESS, LABEL_NODE
from coil.egress.client_pod import EgressRef
from coil.reconcile.controller import DONE, RequeueAfter
from coild.egress.client_slices import ClientAddresses, ClientSlices
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.reconcile.memory_cache import MemoryCache
from tests.coild.egress_scene import NODE, EgressNode, pod
from tests.coild.scene import ListRecorder, advance

WORLD: Final = EgressRef("net", "world")
KEY: Final = "net/world"
LOG: Final = structlog.get_logger()
NAME: Final = slice_name("world", NODE)


class Scene:
    """One node's slices, at an API server in memory; `look` has the cache show what is there."""

    def __init__(self, api: MemoryApi | None = None) -> None:
        self.api = api or MemoryApi()
        if api is None:
            self.api.put(NODES, Node(metadata=ObjectMeta(name=NODE, uid="uid-of-node")))
        self.client = MemoryClient(self.api)
        self.cache = MemoryCache(self.api, EGRESS_CLIENT_SLICES)
        self.certain: set[str] = set()
        self.uncertain: set[str] = set()
        self.egresses = MemoryCache(self.api, CLIENT_EGRESSES)
        self.recorder = ListRecorder()
        self.slices = ClientSlices(
            self.client,
            self.cache,
            self._addresses,
            node=NODE,
            egresses=self.egresses,
            recorder=self.recorder,
            log=LOG,
        )

    def _addresses(self, egress: EgressRef) -> ClientAddresses:
        assert egress == WORLD
        certain, uncertain = (frozenset(map(ip_address, texts)) for texts in (self.certain, self.uncertain))
        return ClientAddresses(certain, uncertain, pods=len(self.certain))

    def told(self) -> tuple[str, ...] | None:
        """The addresses of the slice; None: there is none."""
        found = self.api.find(EGRESS_CLIENT_SLICES, NAME, "net")
        return None if found is None else found.addresses

    def writes(self) -> list[str]:
        """Verbs of the writes since the last look."""
        verbs = [call.verb for call in self.client.calls if call.verb not in {"get", "list"}]
        self.client.calls.clear()
        return verbs


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_the_slice_follows_the_clients(scene: Scene) -> None:
    assert await scene.slices.reconcile(KEY) == DONE
    assert scene.writes() == []
    scene.certain = {"10.1.0.2", "fd00::1"}
    await scene.slices.reconcile(KEY)
    found = scene.api.get(EGRESS_CLIENT_SLICES, NAME, "net")
    assert (found.addresses, found.node_name, found.egress) == (("10.1.0.2", "fd00::1"), NODE, "world")
    assert (found.pods, found.of_node) == (2, True)
    assert found.metadata.labels == {LABEL_EGRESS: "world", LABEL_NODE: NODE}
    [owner] = found.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid) == ("Node", NODE, "uid-of-node")
    # What it has written itself counts before the cache shows it.
    scene.certain = {"fd00::1"}
    await scene.slices.reconcile(KEY)
    await scene.slices.reconcile(KEY)
    assert scene.told() == ("fd00::1",)
    scene.certain = set()
    await scene.slices.reconcile(KEY)
    await scene.slices.reconcile(KEY)
    assert (scene.told(), scene.writes()) == (None, ["create", "patch", "delete"])


async def test_its_own_writes_come_back_to_no_further_look(scene: Scene) -> None:
    keys: list[str] = []
    scene.cache.subscribe(lambda old, new: keys.extend(scene.slices.of_slice(old, new)))
    scene.certain = {"10.1.0.2"}
    await scene.slices.reconcile(KEY)
    scene.cache.look()
    first = keys.copy()
    scene.api.patch(EGRESS_CLIENT_SLICES, NAME, {"addresses": []}, namespace="net")
    scene.cache.look()
    assert keys[len(first) :] == [KEY], "somebody else has changed it"
    await scene.slices.reconcile(KEY)
    assert scene.told() == ("10.1.0.2",)
    scene.cache.look()
    scene.api.remove(EGRESS_CLIENT_SLICES, NAME, "net")
    scene.cache.look()
    await scene.slices.reconcile(keys[-1])
    assert scene.told() == ("10.1.0.2",)


async def test_nothing_is_withdrawn_of_which_nobody_knows_yet(scene: Scene) -> None:
    scene.certain = {"10.1.0.2", "10.1.0.3"}
    await scene.slices.reconcile(KEY)
    after = Scene(scene.api)
    after.cache.look()
    after.uncertain = {"10.1.0.2", "10.1.0.9"}
    assert isinstance(await after.slices.reconcile(KEY), RequeueAfter)
    assert after.told() == ("10.1.0.2",)
    after.uncertain = set()
    assert await after.slices.reconcile(KEY) == DONE
    assert after.told() is None


async def test_a_slice_that_is_being_deleted_is_left_alone_and_made_again(scene: Scene) -> None:
    scene.certain = {"10.1.0.2"}
    await scene.slices.reconcile(KEY)
    patch = {"metadata": {"finalizers": ["somebody/else"]}}
    scene.api.patch(EGRESS_CLIENT_SLICES, NAME, patch, namespace="net")
    scene.api.delete(EGRESS_CLIENT_SLICES, NAME, namespace="net")
    scene.cache.look()
    scene.writes()
    assert await scene.slices.reconcile(KEY) == DONE
    assert scene.writes() == []
    scene.api.remove(EGRESS_CLIENT_SLICES, NAME, "net")
    scene.cache.look()
    await scene.slices.reconcile(KEY)
    assert scene.told() == ("10.1.0.2",)


async def test_who_does_not_fit_is_told_of_and_takes_nobodys_place(scene: Scene) -> None:
    scene.api.put(CLIENT_EGRESSES, {"metadata": {"name": "world", "namespace": "net"}, "spec": {}})
    scene.egresses.look()
    served = {str(ip_address("10.9.0.0") + number) for number in range(MAX_ADDRESSES)}
    scene.certain = served
    with capture_logs() as logs:
        await scene.slices.reconcile(KEY)
        assert (scene.recorder.told, logs) == ([], [])
        # Their texts come first in the order.
        scene.certain = served | {"10.1.0.2", "10.1.0.3"}
        for _ in range(2):
            await scene.slices.reconcile(KEY)
    assert scene.told() == tuple(sorted(served))
    assert {told[:3] for told in scene.recorder.told} == {("Egress", "world", TOO_MANY_CLIENTS)}
    [(*_, message)] = set(scene.recorder.told)  # the same sentence, so that it is one Event
    assert f"on node {NODE} have more than {MAX_ADDRESSES} addresses" in message
    assert [(line["log_level"], line["egress"], line["left_out"]) for line in logs] == [("warning", KEY, 2)]
    scene.recorder.told.clear()
    scene.certain.remove("10.9.0.0")
    scene.certain.remove("10.1.0.3")
    with capture_logs() as logs:
        await scene.slices.reconcile(KEY)
    assert scene.told() == tuple(sorted(scene.certain))
    assert (scene.recorder.told, [line["log_level"] for line in logs]) == ([], ["info"])


async def test_an_egress_that_is_not_known_yet_gets_no_event_and_its_slice_no_more_than_fits(scene: Scene) -> None:
    scene.certain = {str(ip_address("10.9.0.0") + number) for number in range(MAX_ADDRESSES + 1)}
    await scene.slices.reconcile(KEY)
    assert len(scene.told() or ()) == MAX_ADDRESSES
    assert scene.recorder.told == []


def test_names_are_for_one_egress_and_one_node() -> None:
    names = {slice_name(egress, NODE) for egress in ("a", "b", "a-b")} | {slice_name("a", type(NODE)("node-2"))}
    assert len(names) == 4
    assert all(len(slice_name("a" * 63, type(NODE)("n" * length))) == 80 for length in (1, 253))


ADDRESSES = st.sets(st.sampled_from(["10.1.0.1", "10.1.0.2", "fd00::1"]))


@given(st.lists(st.tuples(ADDRESSES, st.booleans(), st.sampled_from(["", "look", "restart", "remove"])), max_size=12))
def test_after_any_history_the_slice_is_right(steps: list[tuple[set[str], bool, str]]) -> None:
    async def play() -> None:
        scene = Scene()
        for addresses, reconciled, what in steps:
            scene.certain = addresses
            if what == "restart":
                scene = Scene(scene.api)
                scene.certain = addresses
            if what == "remove" and scene.told() is not None:
                scene.cache.look()  # a watch tells of each state
                scene.api.remove(EGRESS_CLIENT_SLICES, NAME, "net")
            if what:
                scene.cache.look()
            if reconciled:
                await scene.slices.reconcile(KEY)
        scene.cache.look()
        await scene.slices.reconcile(KEY)
        assert scene.told() == (tuple(sorted(scene.certain)) or None)

    asyncio.run(play())


# --- what the clients are


@pytest.fixture
async def node() -> AsyncIterator[EgressNode]:
    node = EgressNode()
    node.world()
    yield node
    await node.close()


def addresses(node: EgressNode) -> set[str]:
    return set(map(str, node.clients.addresses(WORLD).certain))


async def test_a_client_is_told_of_from_its_add_to_its_del(node: EgressNode) -> None:
    node.pods.put(pod("c1", names={"net": "world"}))
    attachment = node.attachment("c1", ips=("10.1.0.7", "fd00::7"))
    await node.add(attachment)
    assert addresses(node) == {"10.1.0.7", "fd00::7"}
    assert node.changed == [WORLD]
    await node.delete(attachment)
    assert (addresses(node), node.changed) == (set(), [WORLD, WORLD])


async def test_an_annotation_that_changes_is_told_of(node: EgressNode) -> None:
    await node.follow()
    node.pods.put(pod("c1"))
    await node.add(node.attachment("c1"))
    assert node.changed == []
    node.pods.put(pod("c1", names={"net": "world"}))
    await advance()
    assert (addresses(node), node.changed) == ({"10.1.0.7"}, [WORLD])
    node.pods.put(pod("c1"))
    await advance()
    assert (addresses(node), node.changed) == (set(), [WORLD, WORLD])


async def test_pods_of_an_earlier_process_are_uncertain_until_they_are_known(node: EgressNode) -> None:
    attachment = node.attachment("c1")
    await node.adopt(attachment)
    found = node.clients.addresses(WORLD)
    assert (set(map(str, found.certain)), set(map(str, found.uncertain))) == (set(), {"10.1.0.7"})
    node.pods.put(pod("c1", names={"net": "world"}, ips=("10.1.0.7",)))
    await node.clients.refresh(attachment.key)
    found = node.clients.addresses(WORLD)
    assert (set(map(str, found.certain)), set(map(str, found.uncertain))) == ({"10.1.0.7"}, set())
    assert node.changed == [WORLD]


def test_a_slice_without_a_label_is_nobodys() -> None:
    scene = Scene()
    stray = EgressClientSlice(metadata=ObjectMeta(namespace="net", name="stray"), node_name=NODE)
    assert list(scene.slices.of_slice(None, stray)) == []
