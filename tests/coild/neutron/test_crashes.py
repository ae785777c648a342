"""kill -9 between any two steps, reboots, and journals that are lost or damaged: the DEL that comes in the end leaves
nothing, and no port is plugged in twice.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from coil.kube.errors import UnavailableError
from coil.netlink.error import PodCheckError
from coild.model.attachment import InvalidPodError
from coild.model.journal_file import JournalFile
from coild.neutron.journal import PortJournal
from tests.coild.neutron.port_node import PortNode, handoff, settled
from tests.coild.scene import LOG, key

PORT_1 = handoff(1, "").port


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[PortNode]:
    node = PortNode(tmp_path)
    await node.start()
    yield node
    await node.kill()


async def steps_of_an_add(folder: Path) -> int:
    node = PortNode(folder)
    await node.start()
    before = node.steps
    await node.add("c1")
    await node.kill()
    return node.steps - before


async def all_are_deleted(node: PortNode) -> None:
    """What the runtime does in the end: a DEL of every container that it has ever made."""
    for container in ("c1", "c2"):
        await node.engine.delete(key(container))
    await settled()
    assert node.remains == []
    assert node.neutron.twice == []
    await node.kill()
    held, left = PortJournal(JournalFile(node.path, log=LOG)).load()
    assert (held, left) == ({}, {})


class TestKilledInAnAdd:
    async def test_the_del_leaves_nothing(self, tmp_path: Path) -> None:
        last = await steps_of_an_add(tmp_path)
        assert last >= 6
        for at in range(1, last + 1):
            node = PortNode(tmp_path / str(at))
            await node.start()
            await node.add("c2")
            await node.add_and_be_killed("c1", at=at)
            await node.start()
            await node.check("c2")
            await all_are_deleted(node)

    async def test_the_add_may_be_repeated(self, tmp_path: Path) -> None:
        for at in range(1, await steps_of_an_add(tmp_path) + 1):
            node = PortNode(tmp_path / str(at))
            await node.start()
            await node.add_and_be_killed("c1", at=at)
            await node.start()
            await node.add("c1")
            await node.check("c1")
            assert [*node.neutron.plugged] == [PORT_1]
            await all_are_deleted(node)

    async def test_a_veth_that_was_never_plugged_in_is_not_taken_for_a_pod(self, node: PortNode) -> None:
        await node.add_and_be_killed("c1", at=5)
        assert node.kernel.veths
        assert node.neutron.plugged == {}
        await node.start()
        with pytest.raises(PodCheckError, match="plugged in"):
            await node.check("c1")


class TestKilledInADel:
    async def test_the_del_may_be_repeated(self, tmp_path: Path) -> None:
        for at in range(1, 5):
            node = PortNode(tmp_path / str(at))
            await node.start()
            for container in ("c1", "c2"):
                await node.add(container)
            node.kill_at = node.steps + at
            with suppress(asyncio.CancelledError):
                await node.engine.delete(key("c1"))
            await node.kill()
            await node.start()
            await node.check("c2")
            await all_are_deleted(node)


async def test_a_pod_whose_namespace_went_while_no_process_was_there_is_unplugged(node: PortNode) -> None:
    for container in ("c1", "c2"):
        await node.add(container)
    await node.kill()
    node.kernel.remove_namespace(node.request("c1").netns)
    await node.start()
    await settled()
    assert [endpoint for _, endpoint in node.neutron.plugged.values()] == ["c2"]
    await all_are_deleted(node)


async def test_after_a_reboot_all_is_unplugged_without_an_api_server(node: PortNode) -> None:
    for container in ("c1", "c2"):
        await node.add(container)
    node.api.objects.clear()
    await node.reboot()
    node.cache.synced, node.cache.last_error = False, UnavailableError("away")
    await settled()
    assert node.remains == []


async def test_a_del_after_a_restart_needs_no_api_server(node: PortNode) -> None:
    await node.add("c1")
    await node.kill()
    node.api.objects.clear()
    await node.start()
    node.cache.synced, node.cache.last_error = False, UnavailableError("away")
    await all_are_deleted(node)


class TestWithoutTheJournal:
    async def test_pods_are_found_by_their_annotations(self, node: PortNode) -> None:
        given = await node.add("c1")
        await node.kill()
        node.path.unlink()
        await node.start()
        await node.check("c1")
        assert await node.add("c1") == given
        assert node.source.pod_of(key("c1")) == node.pod("c1")
        await all_are_deleted(node)

    async def test_a_pod_that_nobody_knows_ends_all_the_same(self, node: PortNode) -> None:
        """What cannot be done is to unplug it: nobody knows what it was plugged in with."""
        await node.add("c1")
        await node.kill()
        node.path.unlink()
        node.api.objects.clear()
        await node.start()
        for operation in (node.check, node.add):
            with pytest.raises(InvalidPodError, match="nobody knows any more which port"):
                await operation("c1")
        await node.engine.delete(key("c1"))
        assert not node.kernel.veths
        assert node.traces == []

    async def test_a_full_disk_keeps_no_pod_from_coming_and_going(self, tmp_path: Path) -> None:
        node = PortNode(tmp_path)
        node.path = tmp_path / "missing" / "journal"
        await node.start()
        await node.add("c1")
        await node.start()
        await node.check("c1")
        await all_are_deleted(node)


async def test_a_stale_record_does_not_unplug_what_another_container_has(node: PortNode) -> None:
    """Of c1 the last record was lost, and c9 of the same pod has the port by now."""
    await node.add("c1")
    held, _ = PortJournal(JournalFile(node.path, log=LOG)).load()
    await node.engine.delete(key("c1"))
    await node.add("c2")
    await node.kill()
    (stale,) = held.values()
    journal = PortJournal(JournalFile(node.path, log=LOG))
    now_held, left = journal.load()
    (current,) = now_held.values()
    journal.start([current, replace(stale, port=current.port)], left.values())
    journal.close()
    await node.start()
    await settled()
    assert [endpoint for _, endpoint in node.neutron.plugged.values()] == ["c2"]
    await node.check("c2")
