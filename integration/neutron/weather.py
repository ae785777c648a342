"""Foul weather between coil-raven and OpenStack: a front of Neutron and Octavia that refuses calls, is late with them,
and loses answers.

    with Weather.start({"network": neutron.endpoint, "load_balancer": octavia.endpoint}, seed=7) as weather:
        weather.write_clouds(path)
        …
        weather.worsen()
        …
        weather.clear()

It is fair at first. What happens to a call is drawn from the seed, in the order in which calls arrive.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import urlsplit

import msgspec
import yaml

from coil.openstack.client import CALL_SECONDS
from integration.neutron.front import FrontHandler, serving
from integration.neutron.raven_world import CLOUD


class Mishap(StrEnum):
    """What happens to a call."""

    NONE = "none"
    UNAVAILABLE = "unavailable"
    """A proxy has no service to pass it on to: 503."""
    THROTTLED = "throttled"
    """429, with a second to wait."""
    CONFLICT = "conflict"
    """409, in Neutron's words."""
    CUT = "cut"
    """The connection ends before the call reaches the service."""
    LOST = "lost"
    """The service does it, and its answer is lost."""
    LATE = "late"
    """The service gets it later."""
    TIMEOUT = "timeout"
    """The service does it, and answers when nobody waits any more."""


_WEIGHTS: Final = {
    Mishap.NONE: 840,
    Mishap.UNAVAILABLE: 40,
    Mishap.THROTTLED: 5,
    Mishap.CONFLICT: 20,
    Mishap.CUT: 30,
    Mishap.LOST: 40,
    Mishap.LATE: 23,
    Mishap.TIMEOUT: 2,
}
_CONFLICT: Final = {"NeutronError": {"type": "RevisionNumberConstraintFailed", "message": "changed", "detail": ""}}


class Weather:
    """Make one with `start`. `happened` counts what has become of the calls in foul weather."""

    def __init__(self, backends: Mapping[str, str], *, seed: int) -> None:
        self._backends = {kind: urlsplit(url).netloc for kind, url in backends.items()}
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._foul = False
        self._url = ""
        self.happened: Counter[Mishap] = Counter()

    @classmethod
    @contextmanager
    def start(cls, backends: Mapping[str, str], *, seed: int) -> Iterator["Weather"]:
        """Until the end of the context. `backends` are endpoints by openstacksdk's names of services."""
        weather = cls(backends, seed=seed)

        class Handler(_Handler):
            owner = weather

        with serving(Handler, name="weather") as weather._url:
            yield weather

    def write_clouds(self, path: Path) -> Path:
        """clouds.yaml by which everything goes through here."""
        endpoints = {f"{kind}_endpoint_override": f"{self._url}/{kind}" for kind in self._backends}
        path.write_text(yaml.safe_dump({"clouds": {CLOUD: {"auth_type": "none", **endpoints}}}))
        return path

    def worsen(self) -> None:
        """From now on mishaps happen."""
        self._foul = True

    def clear(self) -> None:
        """From now on every call is passed on at once."""
        self._foul = False

    def draw(self) -> tuple[Mishap, float]:
        """What becomes of the next call, and how many seconds a late one waits."""
        with self._lock:
            if not self._foul:
                return Mishap.NONE, 0.0
            [mishap] = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            self.happened[mishap] += 1
            return mishap, self._random.uniform(0.1, 1.5)

    def backend(self, kind: str) -> str:
        return self._backends[kind]


class _Handler(FrontHandler):
    owner: Weather

    def handle_call(self, body: bytes) -> None:
        kind, _, path = self.path.lstrip("/").partition("/")
        mishap, seconds = self.owner.draw()
        match mishap:
            case Mishap.UNAVAILABLE:
                self.answer(503, b"<html>no server is available</html>", {"Content-Type": "text/html"})
                return
            case Mishap.THROTTLED:
                self.answer(429, b"too many", {"Content-Type": "text/plain", "Retry-After": "1"})
                return
            case Mishap.CONFLICT if self.command != "GET":
                self.answer(409, msgspec.json.encode(_CONFLICT))
                return
            case Mishap.CUT:
                self.close_connection = True
                return
            case Mishap.LATE:
                time.sleep(seconds)
        found = self.ask(self.owner.backend(kind), f"/{path}", body)
        if mishap is Mishap.LOST:
            self.close_connection = True
            return
        if mishap is Mishap.TIMEOUT:
            time.sleep(CALL_SECONDS + 1.0)
        self.answer(found.status, found.body, found.headers)
