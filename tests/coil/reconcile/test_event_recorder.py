"""Events: few, counted, in time, and never in anybody's way. In virtual time."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import MESSAGE_BYTES, PODS, Event
from coil.crd.meta import ObjectMeta
from coil.kube.errors import ApiError, ForbiddenError, NamespaceTerminatingError, NotFoundError, UnavailableError
from coil.reconcile.event_recorder import ATTEMPTS, WRITE_PACE, EventMetrics, EventRecorder
from coil.reconcile.event_series import (
    REPEAT_SECONDS,
    SERIES_LIMIT,
    SUBJECT_BURST,
    SUBJECT_REFILL_SECONDS,
    WINDOW_SECONDS,
    EventSubject,
)
from tests.coil.kube.memory_api import Call
from tests.coil.reconcile.event_api import EventApi
from tests.coil.reconcile.virtual_time import run_virtual

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
POOL = EventSubject.of(ADDRESS_POOLS, ObjectMeta(name="default", uid="uid-1"))
POD = EventSubject.of(PODS, ObjectMeta(name="web-0", namespace="shop"))


class Scene:
    """A recorder that runs, its API server and its metrics."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.api = EventApi(clock=loop.time)
        self.registry = CollectorRegistry()
        self.logged = structlog.testing.CapturingLogger()
        numbers = itertools.count(1)
        self.recorder = EventRecorder(
            self.api,
            component="coil-ipam-controller",
            host="node1",
            log=structlog.wrap_logger(self.logged, processors=[]),
            metrics=EventMetrics(self.registry),
            now=lambda: NOON + timedelta(seconds=loop.time()),
            clock=loop.time,
            random=lambda: (next(numbers) % 4096) / 4096,
        )

    def drops(self, reason: str) -> float:
        return self.registry.get_sample_value("event_recorder_drops_total", {"reason": reason}) or 0.0

    def warn(self, message: str, subject: EventSubject = POOL) -> None:
        self.recorder.warn(subject, reason="PoolExhausted", message=message)

    @property
    def only(self) -> Event:
        (event,) = self.api.events()
        return event


def play(script: Callable[[Scene], Awaitable[None]]) -> None:
    """Run `script` beside a recorder."""

    async def main() -> None:
        scene = Scene()
        running = asyncio.create_task(scene.recorder.run())
        try:
            await script(scene)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})
            assert running.cancelled()

    run_virtual(main)


def test_an_event_says_who_what_and_when() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(2.7)
        scene.warn("all 8 blocks are in use")
        await asyncio.sleep(1)
        event = scene.only
        assert event.metadata.namespace == "default", "a pool has no namespace"
        assert event.metadata.name.startswith("default.")
        about = event.involved_object
        assert (about.api_version, about.kind, about.name) == ("coil.cybozu.com/v2", "AddressPool", "default")
        assert (about.namespace, about.uid) == ("", "uid-1")
        assert (event.type, event.reason, event.message) == ("Warning", "PoolExhausted", "all 8 blocks are in use")
        assert (event.source.component, event.source.host) == ("coil-ipam-controller", "node1")
        assert (event.reporting_component, event.reporting_instance) == ("coil-ipam-controller", "node1")
        assert event.first_timestamp == event.last_timestamp == NOON + timedelta(seconds=2), "whole seconds"
        assert event.count == 1

    play(script)


def test_an_event_about_a_pod_is_in_its_namespace_also_without_a_uid() -> None:
    async def script(scene: Scene) -> None:
        scene.recorder.note(POD, reason="AddressGiven", message="it has one")
        await asyncio.sleep(1)
        assert scene.only.metadata.namespace == scene.only.involved_object.namespace == "shop"
        assert (scene.only.type, scene.only.involved_object.uid) == ("Normal", "")

    play(script)


def test_the_same_again_and_again_is_one_event_that_counts() -> None:
    async def script(scene: Scene) -> None:
        for _ in range(1000):
            scene.warn("full")
            await asyncio.sleep(0.3)
        await asyncio.sleep(REPEAT_SECONDS)
        assert scene.only.count == 1000
        assert scene.only.first_timestamp == NOON
        assert scene.only.last_timestamp == NOON + timedelta(seconds=299)
        assert scene.api.verbs()[0] == "create"
        assert len(scene.api.calls) <= 2 + 300 / REPEAT_SECONDS

    play(script)


def test_what_differs_are_several_events() -> None:
    async def script(scene: Scene) -> None:
        scene.warn("full")
        scene.warn("invalid")
        scene.warn("full", POD)
        scene.recorder.note(POOL, reason="PoolExhausted", message="full")
        await asyncio.sleep(1)
        assert len(scene.api.events()) == 4
        assert len({event.metadata.name for event in scene.api.events()}) == 4

    play(script)


def test_after_a_long_silence_a_new_event_begins() -> None:
    async def script(scene: Scene) -> None:
        scene.warn("full")
        await asyncio.sleep(WINDOW_SECONDS + 1)
        scene.warn("full")
        await asyncio.sleep(1)
        assert [event.count for event in scene.api.events()] == [1, 1]

    play(script)


def test_an_event_that_was_deleted_meanwhile_is_created_anew_and_goes_on_counting() -> None:
    async def script(scene: Scene) -> None:
        scene.warn("full")
        await asyncio.sleep(REPEAT_SECONDS)
        first = scene.only.metadata.name
        scene.api.remove_events()
        scene.warn("full")
        await asyncio.sleep(1)
        assert scene.only.count == 2
        assert scene.only.metadata.name != first
        assert scene.api.verbs() == ["create", "patch", "create"]

    play(script)


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (NotFoundError('namespaces "shop" not found', status=404), "debug"),
        (NamespaceTerminatingError("namespace shop is being terminated", status=403), "debug"),
        (ForbiddenError("events is forbidden: cannot create", status=403), "warning"),
    ],
)
def test_what_the_api_server_will_never_take_is_dropped(error: ApiError, level: str) -> None:
    async def script(scene: Scene) -> None:
        scene.api.fate = lambda call: error
        scene.warn("no address", POD)
        await asyncio.sleep(3600)
        assert scene.api.verbs() == ["create"]
        assert scene.drops("refused") == 1
        told = [call.method_name for call in scene.logged.calls if call.kwargs["event"] == "event refused"]
        assert told == [level]
        scene.api.fate = lambda call: None
        scene.warn("no address", POD)
        await asyncio.sleep(1)
        assert scene.only.count == 1

    play(script)


def test_an_outage_is_met_with_patience_and_nothing_is_lost() -> None:
    async def script(scene: Scene) -> None:
        scene.api.fate = lambda call: UnavailableError("no route to host")
        for number in range(5):
            scene.warn("no address", EventSubject("v1", "Pod", f"web-{number}", "shop"))
        await asyncio.sleep(120)
        times = scene.api.times
        assert len(times) <= 12
        assert max(later - earlier for earlier, later in itertools.pairwise(times)) > 10
        scene.api.fate = lambda call: None
        await asyncio.sleep(120)
        assert len(scene.api.events()) == 5
        assert scene.registry.get_sample_value("event_recorder_drops_total", {"reason": "given_up"}) is None

    play(script)


def test_the_api_server_may_ask_for_more_patience() -> None:
    async def script(scene: Scene) -> None:
        scene.api.fate = lambda call: UnavailableError("busy", status=429, retry_after=40.0)
        scene.warn("full")
        await asyncio.sleep(39)
        assert len(scene.api.calls) == 1

    play(script)


def test_one_that_cannot_be_written_does_not_hold_up_the_others_and_is_given_up() -> None:
    async def script(scene: Scene) -> None:
        bad = EventSubject("v1", "Pod", "bad", "shop")
        broken = UnavailableError("a webhook in that namespace is broken", status=500)
        scene.api.fate = lambda call: broken if call.name.startswith("bad.") else None
        scene.warn("no address", bad)
        scene.warn("full")
        await asyncio.sleep(10)
        assert scene.only.involved_object.name == "default"
        await asyncio.sleep(3600)
        assert sum(call.name.startswith("bad.") for call in scene.api.calls) == ATTEMPTS
        assert scene.drops("given_up") == 1

    play(script)


def test_a_creation_whose_answer_was_lost_makes_no_second_event() -> None:
    async def script(scene: Scene) -> None:
        scene.api.lost = lambda call: UnavailableError("reset") if len(scene.api.calls) == 1 else None
        scene.warn("full")
        await asyncio.sleep(60)
        assert scene.only.count == 1
        assert scene.api.verbs() == ["create", "create"]

    play(script)


def test_what_happens_during_a_write_is_counted_by_the_next() -> None:
    async def script(scene: Scene) -> None:
        def meanwhile(call: Call) -> None:
            if call.verb == "create":
                scene.warn("full")

        scene.api.fate = meanwhile
        scene.warn("full")
        await asyncio.sleep(REPEAT_SECONDS + 1)
        assert scene.only.count == 2
        assert scene.api.verbs() == ["create", "patch"]

    play(script)


def test_an_object_with_ever_new_messages_makes_no_storm() -> None:
    async def script(scene: Scene) -> None:
        for number in range(1000):
            scene.warn(f"attempt {number} failed")
        await asyncio.sleep(60)
        assert len(scene.api.calls) == SUBJECT_BURST
        assert scene.drops("rate_limited") == 1000 - SUBJECT_BURST
        scene.warn("full", POD)
        await asyncio.sleep(1)
        assert len(scene.api.calls) == SUBJECT_BURST + 1, "other objects are not concerned"
        await asyncio.sleep(SUBJECT_REFILL_SECONDS)
        scene.warn("attempt 1001 failed")
        await asyncio.sleep(1)
        assert len(scene.api.calls) == SUBJECT_BURST + 2

    play(script)


def test_many_objects_at_once_are_written_at_a_pace_and_beyond_the_limit_dropped() -> None:
    async def script(scene: Scene) -> None:
        for number in range(SERIES_LIMIT + 100):
            scene.warn("no address", EventSubject("v1", "Pod", f"web-{number}", "shop"))
        assert scene.drops("full") == 100
        await asyncio.sleep(SERIES_LIMIT * WRITE_PACE + 1)
        times = scene.api.times
        assert len(times) == SERIES_LIMIT
        assert min(later - earlier for earlier, later in itertools.pairwise(times)) > WRITE_PACE * 0.99
        scene.warn("no address", EventSubject("v1", "Pod", "one-more", "shop"))
        await asyncio.sleep(1)
        assert len(scene.api.events()) == SERIES_LIMIT + 1, "what is written makes room"
        assert scene.drops("full") == 100

    play(script)


@pytest.mark.parametrize("text", ["x" * 5000, "ü" * 5000, "€" * 341 + "xy", "\ud800" * 2000])
def test_messages_keep_the_limit_of_the_api(text: str) -> None:
    async def script(scene: Scene) -> None:
        scene.warn(text)
        await asyncio.sleep(1)
        assert len(scene.only.message.encode()) <= MESSAGE_BYTES
        assert scene.only.message.endswith("…")

    play(script)


def test_a_message_that_is_no_text_is_told_as_well_as_it_can_be() -> None:
    async def script(scene: Scene) -> None:
        scene.warn("bad name \udcff")
        await asyncio.sleep(1)
        assert scene.only.message == "bad name ?"

    play(script)


def test_a_long_name_leaves_room_for_the_events_own() -> None:
    async def script(scene: Scene) -> None:
        name = "a" * 238 + "." + "b" * 14
        scene.warn("full", EventSubject("v1", "Node", name))
        await asyncio.sleep(1)
        assert scene.only.involved_object.name == name
        assert len(scene.only.metadata.name) <= 253
        assert ".." not in scene.only.metadata.name

    play(script)


def test_events_of_others_are_read_whatever_they_leave_out() -> None:
    """The API server asks of an Event for a reference, and of that for nothing."""
    event = msgspec.convert({"metadata": {"name": "other"}, "involvedObject": {"kind": "Node"}}, Event)
    assert (event.involved_object.kind, event.involved_object.name, event.type) == ("Node", "", "")
