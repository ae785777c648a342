"""coild's client and the agent's socket, one with the other."""

import asyncio
import stat
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path

import aiohttp
import pytest

from coil.eip.pod_start import LARGEST, PATH, PodStart
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil_egress_agent.eip.pod_starts import PodRefusedError, serve_pod_starts
from coild.eip.agent_client import EipAgentClient
from coild.model.attachment import Attachment, EgressUnresolvedError, PodName

POD = Attachment(
    key=AttachmentKey(ContainerId("c1"), "eth0"),
    pod=PodName("shop", "web", "uid"),
    addresses=(ip_address("10.1.2.3"), ip_address("fd00::3")),
)


def soon() -> float:
    return asyncio.get_running_loop().time() + 30.0


def client_of(path: Path) -> EipAgentClient:
    return EipAgentClient(path, has_earlier=lambda: False)


def answering(*errors: Exception | None) -> tuple[list[PodStart], Callable[[PodStart], Awaitable[None]]]:
    """What was asked, and who answers: with these, the last one for ever."""
    asked: list[PodStart] = []

    async def enter(start: PodStart) -> None:
        asked.append(start)
        if (error := errors[min(len(asked), len(errors)) - 1]) is not None:
            raise error

    return asked, enter


async def test_the_pod_is_told(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    asked, enter = answering(None)
    async with serve_pod_starts(enter, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await client_of(path).connect(POD, deadline=soon())
    assert asked == [PodStart(namespace="shop", name="web", uid="uid", addresses=("10.1.2.3", "fd00::3"))]


async def test_a_refusal_is_told_with_its_reason(tmp_path: Path) -> None:
    _, enter = answering(PodRefusedError("the kernel does not have its addresses"))
    async with serve_pod_starts(enter, tmp_path / "agent.sock"):
        with pytest.raises(EgressUnresolvedError, match="do not hold yet: the kernel does not have its addresses"):
            await client_of(tmp_path / "agent.sock").connect(POD, deadline=soon())


async def test_an_agent_that_is_being_restarted_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    asked, enter = answering(None)
    connecting = asyncio.create_task(client_of(path).connect(POD, deadline=soon()))
    await asyncio.sleep(0.3)
    assert not connecting.done()
    async with serve_pod_starts(enter, path):
        await connecting
    assert len(asked) == 1


async def test_where_nobody_answers_the_pod_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    client = EipAgentClient(path, has_earlier=lambda: False, patience=0.3)
    with pytest.raises(EgressUnresolvedError, match=r"coil-egress-agent-node has not answered .*agent\.sock"):
        await client.connect(POD, deadline=soon())

    async def never(_: PodStart) -> None:
        await asyncio.get_running_loop().create_future()

    async with serve_pod_starts(never, path):
        with pytest.raises(EgressUnresolvedError, match="has not answered in time"):
            await client.connect(POD, deadline=soon())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", HTTPStatus.BAD_REQUEST),
        (b"[]", HTTPStatus.BAD_REQUEST),
        (b'{"namespace": "shop"}', HTTPStatus.BAD_REQUEST),
        (b"x" * (LARGEST + 1), HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    ],
)
async def test_what_is_no_request(tmp_path: Path, body: bytes, status: HTTPStatus) -> None:
    path = tmp_path / "agent.sock"
    asked, enter = answering(None)
    async with (
        serve_pod_starts(enter, path),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.post(f"http://agent{PATH}", data=body) as answer,
    ):
        assert answer.status == status
    assert asked == []


async def test_a_pod_without_an_address_of_its_own_is_nobodys_affair(tmp_path: Path) -> None:
    without = Attachment(key=POD.key, pod=POD.pod, addresses=())
    await client_of(tmp_path / "nothing").connect(without, deadline=soon())


async def test_beside_an_agent_that_has_no_socket_yet_a_pod_starts_as_before(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    await EipAgentClient(path, has_earlier=lambda: True).connect(POD, deadline=soon())
    # One that has left its socket behind was killed, whatever tables there are.
    path.touch()
    with pytest.raises(EgressUnresolvedError):
        await EipAgentClient(path, has_earlier=lambda: True, patience=0.3).connect(POD, deadline=soon())
