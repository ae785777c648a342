import asyncio
import dataclasses
import io
from dataclasses import dataclass, field

import pytest

from coil.crd.resource import NamespacedName
from coil.kube.errors import ForbiddenError, UnavailableError
from coil_migrator.progress import Progress
from coil_migrator.replace import (
    MIRROR,
    RESTART_MARK,
    Outlook,
    ReplaceError,
    ReplaceOptions,
    look,
    replace,
)
from tests.coil.kube.memory_api import Document
from tests.coil_migrator.memory_cluster import MemoryCluster

COILD = NamespacedName("kube-system", "coild")
OPTIONS = ReplaceOptions(interval=10.0, timeout=30.0, coild=COILD)


@dataclass
class Scene:
    """Two nodes with two pods of v1 each, whose controller makes others at once, which have addresses of v2."""

    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    done: list[str] = field(default_factory=list)
    screen: io.StringIO = field(default_factory=io.StringIO)
    deaths: dict[str, float] = field(default_factory=dict)
    """When each pod was deleted."""
    begun: float = 0.0

    def __post_init__(self) -> None:
        self.cluster.add_block("default-0-v1", "10.1.0.0/30")
        self.cluster.add_block("default-1-v1", "10.1.0.4/30")
        self.cluster.add_block("default-2", "10.1.0.8/30", reserved=False)
        for number in range(4):
            node = number // 2
            self.cluster.add_pod(f"old-{number}", f"10.1.0.{4 * node + number % 2}", node=f"node-{node}")
        self.cluster.add("daemonsets", "coild", namespace="kube-system", spec={"template": {"metadata": {}}})
        self.cluster.reactions.append(self._make_anew)

    def _make_anew(self, plural: str, document: Document) -> None:
        if plural == "pods":
            name = document["metadata"]["name"]
            self.deaths[name] = asyncio.get_running_loop().time()
            self.cluster.add_pod(name.replace("old", "new"), "10.1.0.8", node=document["spec"]["nodeName"])

    async def look(self) -> Outlook:
        return await look(self.cluster, OPTIONS)

    async def replace(self, options: ReplaceOptions = OPTIONS) -> None:
        progress = Progress(self.screen, columns=None)
        self.begun = asyncio.get_running_loop().time()
        await replace(self.cluster, options, progress=progress, done=self.done)

    def set_ready(self, pod: str, status: str = "True") -> None:
        document = self.cluster.document("pods", pod, "apps")
        document["status"]["conditions"] = [{"type": "Ready", "status": status}]

    def restarted(self) -> bool:
        template = self.cluster.document("daemonsets", "coild", "kube-system")["spec"]["template"]
        return RESTART_MARK in template["metadata"].get("annotations", {})


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_pods_node_by_node_then_blocks_then_coild(scene: Scene) -> None:
    await scene.replace()
    assert scene.cluster.changes == [
        *(f"evict pods old-{number}" for number in range(4)),
        "delete addressblocks default-0-v1",
        "delete addressblocks default-1-v1",
        "patch daemonsets coild",
    ]
    assert scene.cluster.names("addressblocks") == ["default-2"]
    assert scene.cluster.names("pods") == ["new-0", "new-1", "new-2", "new-3"]
    assert scene.deaths["old-2"] - scene.deaths["old-1"] == OPTIONS.interval
    assert scene.restarted()
    assert len(scene.done) == 7


async def test_looking_changes_nothing_and_tells_all(scene: Scene) -> None:
    scene.cluster.add_pod("bare", "10.1.0.2", node="node-1", metadata={"ownerReferences": []})
    scene.cluster.add_pod("static", "10.1.0.3", metadata={"annotations": {MIRROR: "x"}})
    outlook = await scene.look()
    assert outlook
    assert outlook.lines() == [
        "5 pods on 2 nodes, which v1 gave their addresses, will be replaced",
        "  node-0: apps/old-0, apps/old-1",
        "  node-1: apps/bare, apps/old-2, apps/old-3",
        "these have no controller and will not come back: apps/bare",
        "these are static, and for their nodes' admins to restart: apps/static",
        "2 reserved blocks will be removed",
        "the DaemonSet kube-system/coild will be restarted",
    ]
    assert scene.cluster.changes == []


async def test_afterwards_there_is_nothing_to_do(scene: Scene) -> None:
    await scene.replace()
    scene.cluster.changes.clear()
    assert not await scene.look()
    await scene.replace()
    assert [write for write in scene.cluster.changes if not write.startswith("patch")] == []


async def test_a_run_that_is_cut_short_is_gone_on_with(scene: Scene) -> None:
    scene.cluster.stubborn.add("old-2")
    deleted = asyncio.Event()

    def notice(_plural: str, _document: Document) -> None:
        if "old-2" in scene.deaths:
            deleted.set()

    scene.cluster.reactions.append(notice)
    task = asyncio.ensure_future(scene.replace())
    await deleted.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [deed.split()[2] for deed in scene.done] == ["apps/old-0", "apps/old-1", "apps/old-2"]
    assert len(scene.cluster.names("addressblocks")) == 3
    scene.cluster.stubborn.clear()
    scene.cluster.changes.clear()
    await scene.replace()
    assert [write for write in scene.cluster.changes if "pods" in write] == ["evict pods old-2", "evict pods old-3"]
    assert scene.cluster.names("addressblocks") == ["default-2"]


async def test_cut_short_before_the_restart(scene: Scene) -> None:
    scene.cluster.faults["patch"] = [UnavailableError("503", status=503)]
    with pytest.raises(UnavailableError):
        await scene.replace()
    assert await scene.look()
    await scene.replace()
    assert scene.restarted()


async def test_a_pod_that_does_not_end_keeps_its_block_and_the_others_go_on(scene: Scene) -> None:
    alone = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "db", "uid": "other", "controller": True}
    scene.cluster.add_pod("old-0", "10.1.0.0", node="node-0", metadata={"ownerReferences": [alone]})
    scene.cluster.stubborn.add("old-0")
    with pytest.raises(ReplaceError, match=r"default-0-v1: apps/old-0$"):
        await scene.replace()
    assert "apps/old-0: has not ended within 30 s" in scene.screen.getvalue()
    assert scene.cluster.names("addressblocks") == ["default-0-v1", "default-2"]
    assert not scene.restarted()


async def test_a_static_pod_keeps_its_block(scene: Scene) -> None:
    scene.cluster.add_pod("static", "10.1.0.3", metadata={"annotations": {MIRROR: "x"}})
    with pytest.raises(ReplaceError, match="default-0-v1: apps/static"):
        await scene.replace()
    assert "evict pods static" not in scene.cluster.changes


async def test_a_pod_that_came_back_with_its_old_address_keeps_the_block(scene: Scene) -> None:
    def come_back(_plural: str, _document: Document) -> None:
        scene.cluster.add_pod("undead", "10.1.0.0")

    scene.cluster.reactions.append(come_back)
    with pytest.raises(ReplaceError, match="default-0-v1: apps/undead"):
        await scene.replace()


async def test_a_pod_of_a_stateful_set_comes_back_under_its_name(scene: Scene) -> None:
    def make_anew(plural: str, document: Document) -> None:
        if plural == "pods":
            scene.cluster.add_pod(document["metadata"]["name"], "10.1.0.8")

    scene.cluster.reactions[:] = [make_anew]
    await scene.replace()
    assert scene.cluster.names("pods") == [f"old-{number}" for number in range(4)]
    assert scene.cluster.names("addressblocks") == ["default-2"]


async def test_an_api_server_that_cannot_be_heard_for_a_moment(scene: Scene) -> None:
    scene.cluster.faults["get"] = [UnavailableError("503", status=503)] * 4
    await scene.replace()
    assert scene.cluster.names("addressblocks") == ["default-2"]


async def test_an_eviction_that_failed_is_told_and_made_good_by_the_next_run(scene: Scene) -> None:
    scene.cluster.faults["evict"] = [UnavailableError("503", status=503)]
    with pytest.raises(ReplaceError, match="default-0-v1: apps/old-0"):
        await scene.replace()
    assert "apps/old-0: was not evicted: 503" in scene.screen.getvalue()
    await scene.replace()
    assert scene.cluster.names("addressblocks") == ["default-2"]


async def test_budgets_are_waited_for(scene: Scene) -> None:
    budget = UnavailableError("the disruption budget web needs 2 healthy pods", status=429)
    hint = UnavailableError("the same", status=429, retry_after=10.0)
    scene.cluster.faults["evict"] = [budget, hint]
    await scene.replace()
    assert scene.deaths["old-0"] - scene.begun == 15.0
    assert scene.cluster.names("addressblocks") == ["default-2"]


async def test_a_budget_that_never_allows_it_stops_the_workload(scene: Scene) -> None:
    budget = UnavailableError("the disruption budget web needs 4 healthy pods", status=429)
    scene.cluster.faults["evict"] = [budget] * 100
    with pytest.raises(ReplaceError, match="default-0-v1: apps/old-0, apps/old-1"):
        await scene.replace()
    assert "apps/old-0: was not evicted: the disruption budget web needs" in scene.screen.getvalue()
    assert len(scene.cluster.faults["evict"]) == 93, "the others of its controller are not tried"
    scene.cluster.faults.clear()
    await scene.replace(dataclasses.replace(OPTIONS, evict=False))
    assert "delete pods old-0" in scene.cluster.changes
    assert scene.cluster.names("addressblocks") == ["default-2"]


async def test_the_next_pod_of_a_workload_waits_until_its_predecessor_is_followed(scene: Scene) -> None:
    def make_ready_later(plural: str, document: Document) -> None:
        if plural == "pods":
            name = document["metadata"]["name"].replace("old", "new")
            asyncio.get_running_loop().call_later(7.0, scene.set_ready, name)
            scene.set_ready(name, "False")

    scene.cluster.reactions.append(make_ready_later)
    await scene.replace()
    assert scene.deaths["old-1"] - scene.deaths["old-0"] >= 7.0
    assert scene.cluster.names("addressblocks") == ["default-2"]


async def test_a_successor_that_is_never_ready_keeps_the_others(scene: Scene) -> None:
    def never(plural: str, document: Document) -> None:
        if plural == "pods":
            scene.set_ready(document["metadata"]["name"].replace("old", "new"), "False")

    scene.cluster.reactions.append(never)
    with pytest.raises(ReplaceError, match="default-0-v1: apps/old-1"):
        await scene.replace()
    said = scene.screen.getvalue()
    assert "apps/old-0: has ended, but its controller has not had 4 pods that are Ready again within 30 s" in said
    assert "apps/old-1: stays, as its controller has fewer pods that are Ready than before" in said
    assert scene.cluster.names("pods") == ["new-0", "old-1", "old-2", "old-3"]


async def test_a_missing_right_ends_it_at_once(scene: Scene) -> None:
    scene.cluster.faults["evict"] = [ForbiddenError("no", status=403)]
    with pytest.raises(ForbiddenError):
        await scene.replace()
    assert (scene.done, scene.cluster.changes) == ([], [])


async def test_without_coild_nothing_is_restarted(scene: Scene) -> None:
    del scene.cluster.objects["daemonsets", "kube-system", "coild"]
    await scene.replace()
    assert not await scene.look()


async def test_long_lists_are_cut(scene: Scene) -> None:
    scene.cluster.add_block("default-9-v1", "10.9.0.0/27")
    for number in range(25):
        scene.cluster.add_pod(f"many-{number:02}", f"10.9.0.{number}", node="node-9")
    [line] = [line for line in (await scene.look()).lines() if line.startswith("  node-9")]
    assert line.endswith("many-09 and 15 more")
