"""One account's access to an OpenStack cloud: openstacksdk in threads, behind one bounded seam.

    client = OpenStackClient(connect, concurrency=8)
    answer = await client.request(Service.NETWORK, "create port", "POST", "/ports", body={"port": {…}})

The library authenticates, finds the services' endpoints, and renews tokens; it is synchronous, so each call has a
thread while it lasts, and no more than `concurrency` are under way. The library's objects for resources are not used:
they hide what the service said when it refused, and cost more than the call.

Credentials are read again, once, when the service does not accept them: an application credential that is rotated in
its Secret needs no restart.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

import msgspec
import openstack
from keystoneauth1.exceptions import ClientException
from keystoneauth1.exceptions.http import Unauthorized
from openstack.connection import Connection

from coil.openstack.call_metrics import CallMetrics
from coil.openstack.error import (
    NotFoundError,
    OpenStackError,
    ThrottledError,
    UnauthenticatedError,
    UnavailableError,
    error_of,
)
from coil.openstack.recent_calls import RecentCalls

CALL_SECONDS: Final = 30.0
"""For one answer, which takes Neutron some hundred milliseconds, or seconds for many ports at once."""
CONCURRENCY: Final = 8
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
PAGE_SIZE: Final = 500
MOST_PAGES: Final = 2000
"""A list that goes on for longer than that has no end."""


class Service(StrEnum):
    """The values are openstacksdk's names for the services."""

    NETWORK = "network"
    LOAD_BALANCER = "load_balancer"


class OpenStack(Protocol):
    """What Neutron's and Octavia's modules need of a client."""

    async def request(
        self,
        service: Service,
        call: str,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded answer; None for one without a body. `call` names it in errors and metrics.

        Raises OpenStackError. Cancelled, the call may have taken place, or may still do so.
        """


def connect(
    clouds_file: Path | None,
    cloud: str,
    *,
    app_name: str,
    fallback: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> Connection:
    """With the credentials as they are now: those of that cloud in clouds.yaml, or else of the variables OS_*.

    Where neither is given, those of `fallback`, as arguments of `openstack.connect`; it may raise OSError. Nothing is
    asked yet. Raises what openstacksdk raises for a configuration that it cannot use.
    """
    given = clouds_file is not None or cloud or any(name.startswith("OS_") for name in os.environ)
    arguments = None if given or fallback is None else fallback()
    if arguments is not None:
        loader = openstack.config.OpenStackConfig(load_yaml_config=False, load_envvars=False)
        return Connection(config=loader.get_one(api_timeout=CALL_SECONDS, **arguments), app_name=app_name)
    files = None if clouds_file is None else [str(clouds_file)]
    loader = openstack.config.OpenStackConfig(config_files=files)
    return Connection(config=loader.get_one(cloud=cloud or None, api_timeout=CALL_SECONDS), app_name=app_name)


class OpenStackClient:
    """Implements `OpenStack`. A context manager; on exit it waits for calls that are under way, which are bounded.

    `connect` makes a connection with the credentials as they are now. `clock` is in monotonic seconds. `recent` keeps
    the last minutes' calls for people.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        metrics: CallMetrics | None = None,
        recent: RecentCalls | None = None,
        concurrency: int = CONCURRENCY,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._connect = connect
        self._metrics = metrics or CallMetrics()
        self._recent = recent
        self._clock = clock
        self._sleep = sleep
        self._threads = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="openstack")
        self._turn = threading.Lock()
        self._connection: Connection | None = None
        self._paused_until = float("-inf")
        self._refusals = 0

    def __enter__(self) -> "OpenStackClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._connection is not None:
            self._connection.close()

    async def request(
        self,
        service: Service,
        call: str,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """See `OpenStack`. After a refusal for too many calls, all wait, twice as long after each further one."""
        if (pause := self.pause_left) > 0:
            await self._sleep(pause)
        loop = asyncio.get_running_loop()
        began = self._clock()
        refusal: OpenStackError | None = None
        try:
            arguments: dict[str, Any] = {"params": dict(query or {}), "headers": dict(headers or {})}
            if body is not None:
                arguments["json"] = body
            answer = await loop.run_in_executor(self._threads, self._perform, service, call, method, path, arguments)
        except OpenStackError as error:
            refusal = error
            if isinstance(error, ThrottledError):
                self._pause(error.retry_after)
            raise
        finally:
            self._observe(call, self._clock() - began, refusal)
        self._refusals = 0
        return answer

    @property
    def pause_left(self) -> float:
        """Seconds for which no call is made, as OpenStack has refused one for too many; 0 outside of such a pause."""
        return max(0.0, self._paused_until - self._clock())

    def _observe(self, call: str, seconds: float, error: OpenStackError | None) -> None:
        self._metrics.observe(call, seconds, code=None if error is None else error.code)
        if self._recent is not None:
            self._recent.observe(call, seconds, error)

    def _pause(self, asked: float | None) -> None:
        pause = min(LONGEST_PAUSE, max(asked or 0.0, FIRST_PAUSE * 2**self._refusals))
        self._refusals = min(self._refusals + 1, 10)
        self._paused_until = max(self._paused_until, self._clock() + pause)

    def _perform(self, service: Service, call: str, method: str, path: str, arguments: Mapping[str, Any]) -> Any:
        """In a thread. `arguments` are those of a `requests.Session`."""
        connection = self._connected()
        try:
            return self._send(connection, service, call, method, path, arguments)
        except UnauthenticatedError:
            # The library has renewed the token once by now. What is left is that the credentials are others today;
            # a call that was not authenticated has done nothing, so it may be repeated.
            return self._send(self._reconnected(connection), service, call, method, path, arguments)

    def _send(
        self,
        connection: Connection,
        service: Service,
        call: str,
        method: str,
        path: str,
        arguments: Mapping[str, Any],
    ) -> Any:
        try:
            # The first use of a service asks it for its versions.
            proxy = getattr(connection, service.value)
            response = proxy.request(path, method, raise_exc=False, **arguments)
        except Unauthorized as error:
            raise UnauthenticatedError(call, "401", str(error)) from None
        except (ClientException, openstack.exceptions.SDKException, OSError) as error:
            # Keystone or the service cannot be reached, or does not answer in time.
            raise UnavailableError(call, type(error).__name__, str(error) or type(error).__name__) from None
        if response.status_code >= 400:
            text = response.text
            raise error_of(call, response.status_code, text, retry_after=response.headers.get("Retry-After", ""))
        if not response.content:
            return None
        try:
            return msgspec.json.decode(response.content)
        except msgspec.MsgspecError as error:
            raise UnavailableError(call, "unreadable", f"its answer cannot be read: {error}") from None

    def _connected(self) -> Connection:
        with self._turn:
            if self._connection is None:
                self._connection = self._open()
            return self._connection

    def _reconnected(self, refused: Connection) -> Connection:
        """Another connection than `refused`; one that another thread has made since, if there is one."""
        with self._turn:
            if self._connection is refused or self._connection is None:
                self._connection = self._open()
            return self._connection

    def _open(self) -> Connection:
        try:
            return self._connect()
        except (ClientException, openstack.exceptions.SDKException, OSError) as error:
            raise UnauthenticatedError("connect", type(error).__name__, str(error)) from None


async def list_all(
    client: OpenStack, service: Service, call: str, path: str, key: str, query: Mapping[str, Any] | None = None
) -> list[Any]:
    """Every page of a list, whose entries are below `key`. Raises OpenStackError; UnavailableError for one without end.

    Pages follow each other by the last entry's ID. A service may be configured to have shorter pages than were asked
    for; it says by a link that there is another one (Networking API v2.0, "Pagination"). What was taken for the whole
    list would make the rest of it look deleted.
    """
    found: list[Any] = []
    marker: dict[str, Any] = {}
    for _ in range(MOST_PAGES):
        answer = await client.request(service, call, "GET", path, query={**(query or {}), "limit": PAGE_SIZE, **marker})
        page = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(page, list):
            raise UnavailableError(call, "unreadable", f"its answer has no {key}")
        found.extend(page)
        if not page or (len(page) < PAGE_SIZE and not _has_next(answer.get(f"{key}_links"))):
            return found
        marker = {"marker": page[-1]["id"]}
    raise UnavailableError(call, "endless", f"its list has more than {MOST_PAGES} pages")


def _has_next(links: Any) -> bool:
    return isinstance(links, list) and any(isinstance(link, dict) and link.get("rel") == "next" for link in links)


async def delete(client: OpenStack, service: Service, call: str, path: str) -> None:
    """Delete what is at the path; what is not there any more is fine. Raises OpenStackError."""
    try:
        await client.request(service, call, "DELETE", path)
    except NotFoundError:
        return
