"""DELs that the plugin has recorded: all are carried out before the first call, each before an ADD of its container."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from coil.cnirpc.error import CniError
from coil.cnirpc.messages import CniArgs
from coil.ipam.occupancy import AttachmentKey
from coil.netlink.error import KernelError
from coil_cni.recorded_delete import record_delete
from coild.cni.missed_deletes import LOOK_SECONDS, MissedDeletes
from coild.cni.service import CniService
from coild.model.attachment import AddRequest
from tests.coil_cni.edges import ENVIRON, NETCONF, run_plugin
from tests.coild.scene import key, now


class Pods:
    """Notes what is asked for, in its order. `gate` is passed before a DEL has had its effect."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, float | None]] = []
        self.errors: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = 0

    async def delete(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        self.begun += 1
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop()
        self.calls.append(("DEL", key.container_id, ended))


class Served(Pods):
    """With the other half of a `PodService` that is used."""

    async def add(self, request: AddRequest) -> None:
        self.calls.append(("ADD", request.key.container_id, None))


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "coild.sock"


@pytest.fixture
def pods() -> Served:
    return Served()


@pytest.fixture
def missed(socket: Path, pods: Served) -> MissedDeletes:
    return MissedDeletes(socket, pods, log=structlog.get_logger(), clock=now)


Record = Callable[..., None]


@pytest.fixture
def record(socket: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """What the plugin does when coild is not there, at a time of the clock."""

    def recorded(container: str, *, at: float) -> None:
        monkeypatch.setattr("coil_cni.recorded_delete.monotonic", lambda: at)
        stdin = json.dumps(NETCONF | {"socket": str(socket)}).encode()
        environ = ENVIRON | {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": container}
        assert run_plugin(environ, stdin, record_delete=record_delete).status == 0

    return recorded


def left(socket: Path) -> list[str]:
    return sorted(path.name for path in socket.with_name(f"{socket.name}.deletes").iterdir())


def add_args(container: str) -> CniArgs:
    args = {"K8S_POD_NAMESPACE": "apps", "K8S_POD_NAME": "web"}
    netconf = json.dumps(NETCONF).encode()
    return CniArgs(container_id=container, netns="/run/netns/a", ifname="eth0", args=args, stdin_data=netconf)


async def test_what_is_recorded_is_carried_out_with_its_time_and_is_then_gone(
    missed: MissedDeletes, pods: Served, record: Record, socket: Path
) -> None:
    await missed.apply()
    await asyncio.sleep(100)
    record("c1", at=40.125)
    record("c2", at=60.0)
    assert missed.read() == {key("c1"): 40.125, key("c2"): 60.0}
    await missed.apply()
    assert sorted(pods.calls) == [("DEL", "c1", 40.125), ("DEL", "c2", 60.0)]
    assert left(socket) == []
    await missed.apply()
    assert len(pods.calls) == 2


async def test_a_time_that_is_still_to_come_is_now(missed: MissedDeletes, pods: Served, record: Record) -> None:
    """It is of before the machine's last start, if its folder outlives that."""
    await asyncio.sleep(100)
    record("c1", at=5000.0)
    await missed.apply()
    assert pods.calls == [("DEL", "c1", 100.0)]


async def test_one_that_fails_keeps_its_record_and_delays_no_other(
    missed: MissedDeletes, pods: Served, record: Record, socket: Path
) -> None:
    record("c1", at=1.0)
    record("c2", at=2.0)
    pods.errors.append(KernelError(doing="test", errno=16))
    with capture_logs() as lines:
        await missed.apply()
    assert len(pods.calls) == 1
    assert len(left(socket)) == 1
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "a recorded DEL is not carried out yet"
    ]
    await missed.apply()
    assert {container for _, container, _ in pods.calls} == {"c1", "c2"}
    assert left(socket) == []


async def test_the_record_goes_only_after_the_attachment(
    missed: MissedDeletes, pods: Served, record: Record, socket: Path
) -> None:
    record("c1", at=0.0)
    pods.gate.clear()
    applying = asyncio.create_task(missed.apply())
    await asyncio.sleep(1)
    assert pods.begun == 1
    assert len(left(socket)) == 1, "the next process would find it"
    pods.gate.set()
    await applying
    assert left(socket) == []


async def test_an_add_waits_for_the_del_of_its_own_container_and_for_no_other(
    missed: MissedDeletes, pods: Served, record: Record
) -> None:
    service = CniService(pods, settle=missed.settle)  # type: ignore[arg-type]
    record("c1", at=0.0)
    pods.gate.clear()
    again = asyncio.create_task(service.add(add_args("c1")))
    await service.add(add_args("c10"))
    await asyncio.sleep(5)
    assert pods.calls == [("ADD", "c10", None)]
    pods.gate.set()
    await again
    assert [call[:2] for call in pods.calls] == [("ADD", "c10"), ("DEL", "c1"), ("ADD", "c1")]


async def test_a_look_that_was_begun_before_an_add_does_not_reach_behind_it(
    missed: MissedDeletes, pods: Served, record: Record
) -> None:
    service = CniService(pods, settle=missed.settle)  # type: ignore[arg-type]
    record("c1", at=0.0)
    pods.gate.clear()
    looking = asyncio.create_task(missed.apply())
    await asyncio.sleep(0)
    adding = [asyncio.create_task(service.add(add_args("c1"))) for _ in range(2)]
    pods.gate.set()
    await asyncio.gather(looking, *adding)
    await missed.apply()
    assert [call[:2] for call in pods.calls] == [("DEL", "c1"), ("ADD", "c1"), ("ADD", "c1")]


async def test_a_del_that_was_recorded_while_another_was_carried_out_comes_before_the_add_too(
    missed: MissedDeletes, pods: Served, record: Record, socket: Path
) -> None:
    service = CniService(pods, settle=missed.settle)  # type: ignore[arg-type]
    record("c1", at=0.0)
    pods.gate.clear()
    looking = asyncio.create_task(missed.apply())
    await asyncio.sleep(0)
    [first] = left(socket)
    socket.with_name(f"{socket.name}.deletes").joinpath(first.replace(":0", ":7")).touch()
    adding = asyncio.create_task(service.add(add_args("c1")))
    await asyncio.sleep(0)
    pods.gate.set()
    await asyncio.gather(looking, adding)
    assert [call[:2] for call in pods.calls] == [("DEL", "c1"), ("DEL", "c1"), ("ADD", "c1")]


async def test_an_add_whose_del_cannot_be_carried_out_fails_with_its_error(
    missed: MissedDeletes, pods: Served, record: Record
) -> None:
    service = CniService(pods, settle=missed.settle)  # type: ignore[arg-type]
    record("c1", at=0.0)
    pods.errors.append(KernelError(doing="test", errno=16))
    with pytest.raises(CniError, match="kernel"):
        await service.add(add_args("c1"))
    assert pods.calls == []


async def test_records_are_found_while_coild_runs(missed: MissedDeletes, pods: Served, record: Record) -> None:
    running = asyncio.create_task(missed.run())
    await asyncio.sleep(10 * LOOK_SECONDS)
    record("c1", at=3.0)
    await asyncio.sleep(LOOK_SECONDS + 0.1)
    assert pods.calls == [("DEL", "c1", 3.0)]
    running.cancel()


@pytest.mark.parametrize("mode", [0o770, 0o707])
async def test_a_folder_that_others_may_write_to_is_not_believed(
    missed: MissedDeletes, pods: Served, record: Record, socket: Path, mode: int
) -> None:
    record("c1", at=0.0)
    socket.with_name(f"{socket.name}.deletes").chmod(mode)
    with capture_logs() as lines:
        await missed.apply()
        assert missed.read() == {}
    assert pods.calls == []
    [line] = lines
    assert "may be written by others" in line["error"]


async def test_a_link_in_the_folders_place_is_not_followed(
    missed: MissedDeletes, pods: Served, record: Record, socket: Path
) -> None:
    record("c1", at=0.0)
    folder = socket.with_name(f"{socket.name}.deletes")
    folder.symlink_to(folder.rename(folder.with_name("elsewhere")))
    await missed.apply()
    assert pods.calls == []


async def test_what_is_no_record_is_left_alone(
    missed: MissedDeletes, pods: Served, record: Record, socket: Path
) -> None:
    record("c1", at=0.0)
    folder = socket.with_name(f"{socket.name}.deletes")
    strangers = ["c2:eth0", "c2:eth0:", "c2:eth0:soon", ":eth0:1", "c2:eth0:1.new", ".c2:eth0:1", "c2:eth0:1:1"]
    for name in strangers:
        (folder / name).touch()
    await missed.apply()
    assert pods.calls == [("DEL", "c1", 0.0)]
    assert left(socket) == sorted(strangers)
