import os

import pytest

from integration.bench import room


def test_without_root_the_obstacle_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COIL_BENCH_SCRATCH", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(room.RoomError, match="run it as root"):
        room.require_room()


def test_without_its_programs_the_obstacle_is_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert room.room_obstacle() == "there is no setpriv, unshare, mount, ip here: install util-linux and iproute2"


def test_inside_there_is_nothing_to_require(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COIL_BENCH_SCRATCH", "/scratch")
    room.require_room()
