"""When the library's client is made, and when it is made anew."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.ec2 import BotocoreEc2, LazyClient
from coil.aws.error import NotSentError, UnavailableError
from coil.eni.interface import InterfaceId


class Library:
    """What its clients do, one outcome a call; `alive` are those that are not closed."""

    def __init__(self) -> None:
        self.outcomes: list[Exception | None] = []
        self.made = 0
        self.alive = 0
        self.error: Exception | None = None

    @asynccontextmanager
    async def make(self) -> AsyncIterator["Library"]:
        if self.error is not None:
            raise self.error
        self.made += 1
        self.alive += 1
        yield self
        self.alive -= 1

    async def delete_network_interface(self, **_: Any) -> dict[str, Any]:
        if (error := self.outcomes.pop(0)) is not None:
            raise error
        return {}


def budget() -> CallBudget:
    return CallBudget({}, default=Rate(10, 10.0), clock=lambda: 0.0, random=lambda: 0.5)


async def test_a_client_without_credentials_is_replaced_and_any_other_is_kept() -> None:
    library = Library()
    library.outcomes = [NoCredentialsError(), None, EndpointConnectionError(endpoint_url="http://127.0.0.1:1"), None]
    async with LazyClient(library.make) as client:
        ec2 = BotocoreEc2(client, budget())
        assert library.made == 0, "nothing is looked for before it is needed"
        with pytest.raises(UnavailableError, match="NoCredentialsError"):
            await ec2.delete_interface(InterfaceId("eni-1"))
        assert library.alive == 0
        await ec2.delete_interface(InterfaceId("eni-1"))
        assert (library.made, library.alive) == (2, 1)
        with pytest.raises(UnavailableError):
            await ec2.delete_interface(InterfaceId("eni-1"))
        await ec2.delete_interface(InterfaceId("eni-1"))
        assert library.made == 2
    assert library.alive == 0


@pytest.mark.parametrize("error", [OSError("no route"), ValueError("Invalid endpoint: no route")])
async def test_a_client_that_cannot_be_made_is_an_answer_that_did_not_come(error: Exception) -> None:
    library = Library()
    library.error = error
    async with LazyClient(library.make) as client:
        ec2 = BotocoreEc2(client, budget())
        with pytest.raises(UnavailableError, match="no route"):
            await ec2.delete_interface(InterfaceId("eni-1"))
        library.error = None
        library.outcomes = [None]
        await ec2.delete_interface(InterfaceId("eni-1"))


@pytest.mark.parametrize("way", ["nobody listens", "no credentials", "ends before an answer"])
async def test_whether_ec2_has_heard_of_a_call_that_was_not_answered(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library has one name for a connection that does not come about and for one that is reset in the middle."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing") if way != "no credentials" else monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if way == "nobody listens":
        server.close()
        await server.wait_closed()
    endpoint = f"http://127.0.0.1:{port}"
    async with BotocoreEc2.connect(region="eu-central-1", budget=budget(), endpoint=endpoint) as ec2:
        with pytest.raises(UnavailableError) as failure:
            await ec2.delete_interface(InterfaceId("eni-1"))
    server.close()
    assert isinstance(failure.value, NotSentError) == (way != "ends before an answer")
