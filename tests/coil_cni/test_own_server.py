"""GC and STATUS against coild's own server, whose releases may or may not know them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from betterproto.lib.google.protobuf import Empty

import coil_cni.service
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs
from coil.cnirpc.server import serve_cni
from tests.coil.cnirpc.scripted_service import ScriptedService, until
from tests.coil_cni.edges import NETCONF, Outcome, run_plugin


async def ask(path: Path, command: str) -> Outcome:
    conf = NETCONF | {"cniVersion": "1.1.0", "socket": str(path), "cni.dev/valid-attachments": []}
    return await asyncio.to_thread(run_plugin, {"CNI_COMMAND": command}, json.dumps(conf).encode())


@pytest.mark.parametrize("healthy", [True, False])
async def test_status_is_what_coild_says_of_its_health(tmp_path: Path, healthy: bool) -> None:
    async with serve_cni(ScriptedService(), path=tmp_path / "sock", healthy=lambda: healthy):
        outcome = await ask(tmp_path / "sock", "STATUS")
    assert (outcome.code if outcome.output else outcome.status) == (0 if healthy else 50)


class Hindered(ScriptedService):
    """An ADD of it would fail."""

    async def status(self, cni_args: CniArgs) -> Empty:
        raise CniError(CniErrorCode.NOT_AVAILABLE, "subnet-1 has no free address")


async def test_status_says_why(tmp_path: Path) -> None:
    async with serve_cni(Hindered(), path=tmp_path / "sock", healthy=lambda: False):
        outcome = await ask(tmp_path / "sock", "STATUS")
    assert outcome.code == 50
    assert b"subnet-1 has no free address" in outcome.output


async def test_a_coild_that_does_not_say_why(tmp_path: Path) -> None:
    """One of an earlier release, or one for which the reason has just gone."""
    async with serve_cni(ScriptedService(), path=tmp_path / "sock", healthy=lambda: False):
        outcome = await ask(tmp_path / "sock", "STATUS")
    assert outcome.code == 50
    assert b"coild does not serve pods yet" in outcome.output


async def test_a_coild_that_is_restarted_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coil_cni.service.STATUS_GRACE", 60.0)
    attempts = 0

    def check(*arguments: Any) -> None:
        nonlocal attempts
        attempts += 1
        check_status(*arguments)

    check_status = coil_cni.service._check_status
    monkeypatch.setattr("coil_cni.service._check_status", check)
    asked = asyncio.create_task(ask(tmp_path / "sock", "STATUS"))
    await until(lambda: attempts > 1)
    ready = asyncio.Event()
    async with serve_cni(ScriptedService(), path=tmp_path / "sock", healthy=ready.is_set):
        before = attempts
        # Of two more, the second began when it was there, and did not serve yet.
        await until(lambda: attempts > before + 2)
        assert not asked.done()
        ready.set()
        outcome = await asked
    assert (outcome.status, outcome.output) == (0, b"")


async def test_a_gc_does_no_harm(tmp_path: Path) -> None:
    async with serve_cni(ScriptedService(), path=tmp_path / "sock"):
        outcome = await ask(tmp_path / "sock", "GC")
    assert (outcome.status, outcome.output) == (0, b"")
