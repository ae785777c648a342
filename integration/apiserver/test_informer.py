"""The informer against the real kube-apiserver, with the network, the server and its history taken away."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
import yaml
from prometheus_client import CollectorRegistry

from coil.crd.builtin import NAMESPACES
from coil.kube.client import KubeClient
from coil.kube.collection import Collection
from coil.kube.errors import ForbiddenError
from coil.reconcile.informer import Informer, InformerMetrics
from integration.apiserver.config_map import CONFIG_MAPS, ConfigMap
from integration.apiserver.relay import Relay, relaying
from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver

GUARD_SECONDS = 60.0
HASTE = 0.1
"""Of each pause, what is waited for."""


class Follower:
    """An informer and what it told, by name."""

    def __init__(self, collection: Collection[ConfigMap]) -> None:
        self.registry = CollectorRegistry()
        self.informer = Informer(
            collection,
            log=structlog.get_logger(),
            metrics=InformerMetrics(self.registry),
            sleep=self._sleep,
            indexers={"data": lambda item: item.data},
        )
        self.told: list[str] = []
        self.replayed: dict[str, ConfigMap] = {}
        self._poke = asyncio.Event()
        self.informer.subscribe(self._note)

    def _note(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        some = new or old
        assert some is not None
        name = some.metadata.name
        assert self.replayed.get(name) == old
        if new is None:
            del self.replayed[name]
            self.told.append(f"-{name}")
        else:
            self.replayed[name] = new
            self.told.append(f"~{name}" if old else f"+{name}")
        self._poke.set()

    async def _sleep(self, delay: float) -> None:
        self._poke.set()
        await asyncio.sleep(delay * HASTE)

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(GUARD_SECONDS):
            while not reached():
                self._poke.clear()
                await self._poke.wait()

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(name, {"resource": "configmaps"}) or 0.0


@asynccontextmanager
async def following(collection: Collection[ConfigMap]) -> AsyncIterator[Follower]:
    follower = Follower(collection)
    running = asyncio.create_task(follower.informer.run())
    try:
        yield follower
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled(), running


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace, the administrator who changes things in it, and a collection behind a relay."""

    namespace: str
    admin: KubeClient
    relay: Relay
    collection: Collection[ConfigMap]

    async def put(self, name: str, **data: str) -> None:
        await self.admin.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, namespace=self.namespace)

    async def delete(self, name: str) -> None:
        await self.admin.delete(CONFIG_MAPS, name, namespace=self.namespace)


@pytest.fixture
async def place(apiserver: ControlPlane, tmp_path: Path) -> AsyncIterator[Place]:
    namespace = f"informer-{secrets.token_hex(4)}"
    async with KubeClient.connect(apiserver.admin_kubeconfig) as admin:
        await admin.create(NAMESPACES, {"metadata": {"name": namespace}})
        async with relaying(str(apiserver.address), apiserver.port) as relay:
            path = _through(relay, apiserver.admin_kubeconfig, tmp_path / "kubeconfig")
            async with KubeClient.connect(path) as client:
                # Not every control plane here has the controller that puts a CA bundle into each namespace.
                fields = "metadata.name!=kube-root-ca.crt"
                collection = client.collection(CONFIG_MAPS, namespace=namespace, fields=fields)
                yield Place(namespace, admin, relay, collection)
        await admin.delete(NAMESPACES, namespace)


def _through(relay: Relay, kubeconfig: Path, path: Path) -> Path:
    document = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://{relay.host}:{relay.port}"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
    return path


async def test_list_and_watch(place: Place) -> None:
    await place.put("a", x="1")
    await place.put("b", x="2")
    async with following(place.collection) as follower:
        await follower.informer.wait_synced(GUARD_SECONDS)
        assert sorted(follower.told) == ["+a", "+b"]
        await place.admin.patch(CONFIG_MAPS, "a", {"data": {"x": None, "y": "2"}}, namespace=place.namespace)
        await place.delete("b")
        await place.put("c")
        await follower.until(lambda: follower.told[2:] == ["~a", "-b", "+c"])
        assert follower.informer.by_index("data", "x") == []
        assert [item.metadata.name for item in follower.informer.by_index("data", "y")] == ["a"]
        found = follower.informer.get(f"{place.namespace}/a")
        assert found == await place.admin.get(CONFIG_MAPS, "a", namespace=place.namespace)


async def test_a_short_partition_is_bridged_by_the_watch(place: Place) -> None:
    await place.put("a")
    await place.put("b")
    async with following(place.collection) as follower:
        await follower.informer.wait_synced(GUARD_SECONDS)
        await place.relay.cut()
        await place.delete("a")
        await place.delete("b")
        await place.put("b")
        await place.relay.join()
        await follower.until(lambda: follower.told[2:] == ["-a", "-b", "+b"])
        assert follower.count("informer_lists_total") == 1


async def test_after_a_compaction_the_list_tells_what_was_missed(place: Place, apiserver: ControlPlane) -> None:
    for name in ("kept", "gone", "changed", "replaced"):
        await place.put(name)
    async with following(place.collection) as follower:
        await follower.informer.wait_synced(GUARD_SECONDS)
        await place.relay.cut()
        await place.delete("gone")
        await place.admin.patch(CONFIG_MAPS, "changed", {"data": {"x": "1"}}, namespace=place.namespace)
        await place.delete("replaced")
        await place.put("replaced")
        await place.put("new")
        await asyncio.to_thread(apiserver.compact_etcd)
        await asyncio.to_thread(apiserver.restart_apiserver)  # its watch cache would still know
        await place.relay.join()
        await follower.until(lambda: "-gone" in follower.told)
        told = follower.told[4:]
        assert sorted(told) == ["+new", "+replaced", "-gone", "-replaced", "~changed"]
        assert told.index("-replaced") < told.index("+replaced")
        assert follower.count("informer_lists_total") == 2


async def test_a_restarted_server(place: Place, apiserver: ControlPlane) -> None:
    await place.put("a")
    async with following(place.collection) as follower:
        await follower.informer.wait_synced(GUARD_SECONDS)
        await asyncio.to_thread(apiserver.restart_apiserver)
        await place.delete("a")
        await place.put("b")
        await follower.until(lambda: follower.told == ["+a", "-a", "+b"])


async def test_compaction_does_not_disturb_a_running_watch(place: Place, apiserver: ControlPlane) -> None:
    async with following(place.collection) as follower:
        await follower.informer.wait_synced(GUARD_SECONDS)
        await place.put("a")
        await asyncio.to_thread(apiserver.compact_etcd)
        await place.put("b")
        await follower.until(lambda: follower.told == ["+a", "+b"])
        assert follower.count("informer_lists_total") == 1


async def test_a_missing_permission_is_told_and_its_grant_noticed(place: Place, apiserver: ControlPlane) -> None:
    await place.put("a")
    account = f"--serviceaccount={place.namespace}:reader"
    scope = f"--namespace={place.namespace}"

    async def kubectl(*arguments: str) -> None:
        await asyncio.to_thread(apiserver.kubectl, *arguments, scope)

    await kubectl("create", "serviceaccount", "reader")
    await kubectl("create", "role", "reader", "--verb=list,watch", "--resource=configmaps")
    kubeconfig = await asyncio.to_thread(apiserver.kubeconfig_for, "reader", place.namespace)
    async with (
        KubeClient.connect(kubeconfig) as client,
        following(client.collection(CONFIG_MAPS, namespace=place.namespace)) as follower,
    ):
        await follower.until(lambda: follower.informer.last_error is not None)
        with pytest.raises(TimeoutError, match=r"cannot (list|watch) resource .configmaps.") as caught:
            await follower.informer.wait_synced(0)
        assert isinstance(caught.value.__cause__, ForbiddenError)
        await kubectl("create", "rolebinding", "reader", "--role=reader", account)
        await follower.informer.wait_synced(GUARD_SECONDS)
        assert "+a" in follower.told
