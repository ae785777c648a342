import io
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import yaml

from coil.crd.names import ANNOTATION_POOL
from coil.kube.errors import ForbiddenError, UnavailableError
from coil_migrator.dump import DumpError, DumpOptions, dump
from coil_migrator.etcd_reader import EtcdAccess, EtcdReader
from coil_migrator.progress import Progress
from coil_migrator.v1_install import V1_OBJECTS
from tests.coil.kube.memory_api import Document
from tests.coil_migrator.memory_cluster import MemoryCluster
from tests.coil_migrator.v1_cluster import V1Cluster

OPTIONS = DumpOptions(prefix=b"/coil/", timeout=5.0)
OWNERS = {"coil-node-x": ("DaemonSet", "coil-node"), "coil-controllers-5d-y": ("ReplicaSet", "coil-controllers-5d")}


@dataclass
class Scene:
    """A cluster that v1 runs in. `cluster` reacts as a garbage collector does: v1's pods go with what owns them."""

    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    v1: V1Cluster = field(default_factory=V1Cluster)
    done: list[str] = field(default_factory=list)
    screen: io.StringIO = field(default_factory=io.StringIO)
    reads: int = 0

    def __post_init__(self) -> None:
        self.v1.add_pool("default", 2, "10.1.0.0/28")
        self.v1.add_pool("apps", 2, "10.2.0.0/28")
        self.v1.assign("default", "node-1", "10.1.0.0/30")
        self.v1.use("10.1.0.0/30", 1, "c1")
        for item in V1_OBJECTS:
            self.cluster.add(item.resource.plural, item.name, namespace=item.namespace)
        for name, (kind, owner) in OWNERS.items():
            reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": "u", "controller": True}
            self.cluster.add("pods", name, namespace="kube-system", metadata={"ownerReferences": [reference]})
        for node in ("node-1", "node-2"):
            self.cluster.add("nodes", node)
        for namespace in ("default", "apps", "kube-system"):
            self.cluster.add("namespaces", namespace)
        self.cluster.reactions.append(self._collect)

    async def dump(self, **options: Any) -> list[Document]:
        progress = Progress(self.screen, columns=None)
        text = await dump(
            self.cluster, SceneReader(self), replace(OPTIONS, **options), progress=progress, done=self.done
        )
        return list(yaml.safe_load_all(text))

    def _collect(self, plural: str, document: Document) -> None:
        owner = document["metadata"]["name"]
        for name, (_, maker) in OWNERS.items():
            if plural in {"daemonsets", "deployments"} and maker.startswith(owner):
                self.cluster.objects.pop(("pods", "kube-system", name), None)


class SceneReader(EtcdReader):
    """v1's etcd, without a connection."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(EtcdAccess(endpoints=()))
        self._scene = scene

    async def read(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        assert prefix == b"/coil/"
        self._scene.reads += 1
        return self._scene.v1.entries()


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_v1_is_removed_namespaces_are_marked_and_the_objects_come_in_order(scene: Scene) -> None:
    documents = await scene.dump()
    kinds = [(item["kind"], item["metadata"]["name"]) for item in documents]
    assert kinds == [("AddressPool", "apps"), ("AddressPool", "default"), ("AddressBlock", "default-0-v1")]
    for item in V1_OBJECTS:
        assert (item.resource.plural, item.namespace, item.name) not in scene.cluster.objects
    assert scene.cluster.document("namespaces", "apps")["metadata"]["annotations"] == {ANNOTATION_POOL: "apps"}
    assert "annotations" not in scene.cluster.document("namespaces", "default")["metadata"]
    assert len(scene.done) == len(V1_OBJECTS) + 1


async def test_who_writes_goes_before_what_lets_him(scene: Scene) -> None:
    await scene.dump()
    assert scene.cluster.changes[:2] == ["delete daemonsets coil-node", "delete deployments coil-controllers"]


async def test_again_changes_nothing_and_says_the_same(scene: Scene) -> None:
    documents = await scene.dump()
    scene.cluster.changes.clear()
    assert await scene.dump() == documents
    assert scene.cluster.changes == []


async def test_a_dry_run_changes_nothing_and_tells_all(scene: Scene) -> None:
    documents = await scene.dump(dry_run=True)
    assert len(documents) == 3
    assert (scene.cluster.changes, scene.done) == ([], [])
    told = scene.screen.getvalue()
    assert told.count("would remove v1's ") == len(V1_OBJECTS)
    assert "would annotate the namespace apps" in told


async def test_what_v1_did_until_its_end_is_in_the_dump(scene: Scene) -> None:
    def last_act(plural: str, _document: Document) -> None:
        if plural == "daemonsets":
            scene.v1.assign("default", "node-2", "10.1.0.4/30")

    scene.cluster.reactions.insert(0, last_act)
    names = [item["metadata"]["name"] for item in await scene.dump()]
    assert names[2:] == ["default-0-v1", "default-1-v1"]


async def test_v1_may_be_left_running(scene: Scene) -> None:
    await scene.dump(skip_uninstall=True)
    assert scene.cluster.changes == ["patch namespaces apps"]
    assert "are not in the dump" in scene.screen.getvalue()


async def test_an_admins_own_annotation_stays(scene: Scene) -> None:
    scene.cluster.document("namespaces", "apps")["metadata"]["annotations"] = {ANNOTATION_POOL: "default"}
    await scene.dump()
    assert scene.cluster.document("namespaces", "apps")["metadata"]["annotations"] == {ANNOTATION_POOL: "default"}
    assert "is left with the pool 'default'" in scene.screen.getvalue()


@pytest.mark.parametrize("damage", ["unreadable", "unaccounted", "empty"])
async def test_what_cannot_be_converted_is_told_before_anything_is_changed(scene: Scene, damage: str) -> None:
    if damage == "unreadable":
        scene.v1.addresses["10.1.0/30", 0] = "c2"
    elif damage == "unaccounted":
        scene.v1.use("10.1.0.12/30", 0, "c2")
    else:
        scene.v1 = V1Cluster()
    with pytest.raises(DumpError):
        await scene.dump()
    assert (scene.cluster.changes, scene.done) == ([], [])


async def test_what_v1_breaks_at_its_end_is_told_with_what_was_done(scene: Scene) -> None:
    def last_act(plural: str, _document: Document) -> None:
        if plural == "serviceaccounts":
            scene.v1.use("10.1.0.12/30", 0, "c2")

    scene.cluster.reactions.append(last_act)
    with pytest.raises(DumpError, match=r"10\.1\.0\.12 of the pod"):
        await scene.dump()
    assert len(scene.done) == len(V1_OBJECTS) + 1


async def test_an_object_that_does_not_go(scene: Scene) -> None:
    scene.cluster.stubborn.add("coil-config")
    with pytest.raises(DumpError, match="ConfigMap coil-config is still there after 5 s"):
        await scene.dump()
    assert [deed.split()[1] for deed in scene.done] == ["DaemonSet", "Deployment", "ConfigMap"]
    scene.cluster.stubborn.clear()
    await scene.dump()


async def test_a_pod_of_v1_that_does_not_end(scene: Scene) -> None:
    scene.cluster.reactions.clear()
    with pytest.raises(DumpError, match=r"still run after 5 s.*coil-controllers-5d-y, coil-node-x"):
        await scene.dump()
    assert "patch namespaces apps" not in scene.cluster.changes
    for name in OWNERS:
        del scene.cluster.objects["pods", "kube-system", name]
    assert len(await scene.dump()) == 3


async def test_an_api_server_that_goes_away_for_a_while_is_waited_for(scene: Scene) -> None:
    def go_away(plural: str, _document: Document) -> None:
        if plural == "configmaps":
            scene.cluster.faults["get"] = [UnavailableError("503", status=503)] * 3

    scene.cluster.reactions.append(go_away)
    assert len(await scene.dump()) == 3


async def test_a_missing_right_is_told(scene: Scene) -> None:
    scene.cluster.faults["delete"] = [ForbiddenError("no", status=403)]
    with pytest.raises(ForbiddenError):
        await scene.dump()
    assert scene.done == []


async def test_the_pods_of_v2_are_no_writers(scene: Scene) -> None:
    for kind, owner in (("DaemonSet", "coild"), ("ReplicaSet", "coil-ipam-controller-7f"), ("DaemonSet", "coil-nodes")):
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": "u", "controller": True}
        scene.cluster.add("pods", f"{owner}-x", namespace="kube-system", metadata={"ownerReferences": [reference]})
    assert len(await scene.dump()) == 3
