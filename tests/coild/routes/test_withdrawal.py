"""When coild stops: which answer of the API server withdraws the routes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog

from coil.kube.errors import ApiError, ForbiddenError, NotFoundError, UnavailableError
from coild.routes.withdrawal import withdraw_if_gone


def answering(error: Exception | None) -> Callable[[], Awaitable[object]]:
    async def get() -> object:
        if error is not None:
            raise error
        return object()

    return get


async def is_withdrawn(get_node: Callable[[], Awaitable[object]]) -> bool:
    calls: list[None] = []

    async def withdraw() -> None:
        calls.append(None)

    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
    await withdraw_if_gone(get_node, withdraw, log=log, seconds=0.05)
    return bool(calls)


@pytest.mark.parametrize(
    ("answer", "withdrawn"),
    [
        (None, False),
        (NotFoundError("gone"), True),
        (ForbiddenError("no"), False),
        (UnavailableError("away"), False),
        (ApiError("else"), False),
    ],
    ids=["there", "gone", "forbidden", "away", "else"],
)
async def test_routes_are_withdrawn_where_the_node_is_gone_only(answer: Exception | None, *, withdrawn: bool) -> None:
    assert await is_withdrawn(answering(answer)) is withdrawn


async def test_a_stop_does_not_wait_for_an_api_server_that_does_not_answer() -> None:
    assert not await is_withdrawn(asyncio.Event().wait)
