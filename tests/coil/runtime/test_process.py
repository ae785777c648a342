"""The frame, on real processes: what they answer, how they end, and what they say about it.

`program` misbehaves on demand; see there for each behaviour.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.runtime.process import Process
from coil.runtime.stop import ExitCode

PATIENCE = 180.0  # a bound that only a failure reaches
LONG = "120s"  # a stop timeout that only a failure reaches
SHORT = "1s"


class Program:
    """A running `program` and what it has logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    async def line(self, event: str) -> dict[str, Any]:
        """The next line of that event; those before it are kept in `lines`."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while text := await self.process.stderr.readline():
                self.lines.append(json.loads(text))
                if self.lines[-1]["event"] == event:
                    return self.lines[-1]
        raise AssertionError(f"ended without {event!r}: {self.lines}")

    async def end(self) -> int:
        """Its exit code; all that it has logged is in `lines` then."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while text := await self.process.stderr.readline():
                self.lines.append(json.loads(text))
            return await self.process.wait()

    def events(self, name: str) -> list[str]:
        return [line["event"] + " " + str(line.get("task", "")) for line in self.lines if line["event"] == name]


@asynccontextmanager
async def running(behaviour: str, *arguments: str) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.coil.runtime.program",
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"BEHAVIOUR": behaviour},
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def get(endpoint: str, path: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as client,
        client.get(f"http://{endpoint}{path}") as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text


class TestLife:
    async def test_it_is_healthy_ready_and_counted(self) -> None:
        async with running("good", f"--stop-timeout={LONG}") as program:
            starting = await program.line("starting")
            await program.line("started")
            assert starting["health"].startswith("127.0.0.1:")
            assert await get(starting["health"], "/healthz") == (
                200,
                {"status": "ok", "checks": {"tasks": "ok"}},
            )
            assert await get(starting["health"], "/readyz") == (
                200,
                {"status": "ok", "checks": {"process": "ok"}},
            )
            status, text = await get(starting["metrics"], "/metrics")
            assert status == 200
            assert "process_resident_memory_bytes" in text
            program.process.send_signal(signal.SIGTERM)
            assert await program.end() == ExitCode.STOPPED

    async def test_it_answers_and_is_not_ready_while_it_starts(self) -> None:
        async with running("start-hangs", f"--stop-timeout={LONG}") as program:
            starting = await program.line("starting")
            await program.line("hanging")
            status, body = await get(starting["health"], "/readyz")
            assert (status, body["checks"]) == (503, {"process": "starting"})
            assert (await get(starting["health"], "/healthz"))[0] == 200
            program.process.send_signal(signal.SIGTERM)
            assert await program.end() == ExitCode.STOPPED

    async def test_a_service_has_checks_of_its_own(self) -> None:
        async with running("unready") as program:
            starting = await program.line("starting")
            await program.line("started")
            status, body = await get(starting["health"], "/readyz")
            assert (status, body["checks"]) == (503, {"process": "ok", "cache": "not synced yet"})
        async with running("dead") as program:
            starting = await program.line("starting")
            await program.line("started")
            status, body = await get(starting["health"], "/healthz")
            assert (status, body["checks"]) == (503, {"tasks": "ok", "disk": "read-only"})

    async def test_a_port_that_is_taken_ends_it_with_the_reason(self) -> None:
        async with running("good") as first:
            taken = (await first.line("starting"))["health"]
            async with running("good", f"--health-addr={taken}") as second:
                assert await second.end() == ExitCode.FAILED
                assert f"cannot listen on {taken}" in second.lines[0]["reason"]


class TestStop:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_a_signal_takes_it_apart_in_the_reverse_order(self, number: signal.Signals) -> None:
        async with running("good", f"--stop-timeout={LONG}") as program:
            await program.line("started")
            program.process.send_signal(number)
            assert await program.end() == ExitCode.STOPPED
            said = [line.get("task") or line["event"] for line in program.lines[2:]]
            assert said == ["stopping", "second", "resource closed", "first", "stopped"]
            assert program.lines[2]["reason"] == number.name

    async def test_a_task_that_does_not_stop_is_named_when_the_time_is_over(self) -> None:
        async with running("mule", f"--stop-timeout={SHORT}") as program:
            await program.line("started")
            program.process.send_signal(signal.SIGTERM)
            assert await program.end() == ExitCode.STUCK
            words = program.lines[-1]
            assert words["event"] == "exiting at once"
            assert words["reason"] == "the stop took longer than 1 s"
            assert words["unstopped"][0].startswith("task mule at runtime/program.py:")
            assert [text.endswith("(not cancelled yet)") for text in words["unstopped"]] == [False, True, True]

    async def test_a_second_signal_ends_it_at_once(self) -> None:
        async with running("mule", f"--stop-timeout={LONG}") as program:
            await program.line("started")
            program.process.send_signal(signal.SIGTERM)
            await program.line("refusing to stop")
            program.process.send_signal(signal.SIGINT)
            assert await program.end() == ExitCode.STUCK
            assert program.lines[-1]["reason"] == "SIGINT, after having been asked to stop before"

    async def test_an_event_loop_that_is_stuck_ends_in_time_too(self) -> None:
        async with running("hog", f"--stop-timeout={SHORT}") as program:
            await program.line("blocking")
            program.process.send_signal(signal.SIGTERM)
            assert await program.end() == ExitCode.STUCK
            assert any("task hog at runtime/program.py:" in text for text in program.lines[-1]["unstopped"])

    async def test_a_thread_that_is_stuck_ends_in_time_too(self) -> None:
        async with running("thread-stuck", f"--stop-timeout={SHORT}") as program:
            await program.line("started")
            program.process.send_signal(signal.SIGTERM)
            assert await program.end() == ExitCode.STUCK
            assert any(text.startswith("thread ") for text in program.lines[-1]["unstopped"])

    async def test_a_failure_while_it_stops_is_a_failure(self) -> None:
        async with running("messy", f"--stop-timeout={LONG}") as program:
            await program.line("started")
            program.process.send_signal(signal.SIGTERM)
            assert await program.end() == ExitCode.FAILED
            assert program.lines[-1]["reason"] == "task messy: OSError: cannot put it back"
            assert len(program.events("task stopped")) == 2, "the others were stopped all the same"


class TestFailure:
    @pytest.mark.parametrize(
        ("behaviour", "reason"),
        [
            ("link", "task link: ConnectionError: the far end is gone"),
            ("short", "task short ended, though it was to run until the process stops"),
            ("moody", "task moody was cancelled from within, though it was to run until the process stops"),
            ("start-fails", "start: LookupError: no such pool"),
            ("resource-fails", "OSError: cannot let go"),
        ],
    )
    async def test_it_stops_gracefully_with_its_reason(self, behaviour: str, reason: str) -> None:
        async with running(behaviour, f"--stop-timeout={LONG}") as program:
            if behaviour == "resource-fails":
                await program.line("started")
                program.process.send_signal(signal.SIGTERM)
            assert await program.end() == ExitCode.FAILED
            failed = next(line for line in program.lines if line["event"] == "failed")
            assert failed["reason"] == reason
            assert program.lines[-1]["event"] == "stopped"
            assert program.lines[-1]["reason"] == reason
            assert len(program.events("task stopped")) == 2

    async def test_the_traceback_is_in_the_log(self) -> None:
        async with running("link", f"--stop-timeout={LONG}") as program:
            failed = await program.line("failed")
            assert "in fail_soon" in failed["exception"]

    async def test_a_mistake_in_the_settings_is_code_2(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.coil.runtime.program",
            "--stop-timeout=soon",
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"BEHAVIOUR": "good"},
        )
        _, text = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 2
        assert text.decode().splitlines()[-1].startswith('program: error: --stop-timeout: "soon" is not')


async def test_names_of_tasks_are_unique() -> None:
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
    process = Process("test", log=log, registry=CollectorRegistry(), stop_timeout=1.0)
    process.spawn("nodes", asyncio.sleep(3600))
    with pytest.raises(ValueError, match="a task named 'nodes' already"):
        process.spawn("nodes", asyncio.sleep(0))
    await process.stack.aclose()
    assert process.failure is None
