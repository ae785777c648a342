"""The socket file: its mode, who may have it, what is left of it."""

import os
import socket
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from coil.cnirpc.listener import Listener, ListenError
from tests.coil.cnirpc.scripted_service import can_connect


def stale(path: Path) -> None:
    """The file of a daemon that died."""
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))


def test_only_its_owner_may_connect_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Listener(tmp_path / "s"):
            assert stat.filemode((tmp_path / "s").stat().st_mode) == "srw-------"
            assert stat.filemode((tmp_path / "s.lock").stat().st_mode) == "-rw-------"
    finally:
        os.umask(before)


def test_there_is_no_instant_with_a_wider_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    bind = socket.socket.bind

    def observed(self: socket.socket, address: str) -> None:
        bind(self, address)
        modes.append(stat.filemode(Path(address).stat().st_mode))

    monkeypatch.setattr(socket.socket, "bind", observed)
    with Listener(tmp_path / "s"):
        assert modes == ["srw-------"]


def test_it_is_gone_afterwards(tmp_path: Path) -> None:
    with Listener(tmp_path / "s"):
        assert can_connect(tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["s.lock"]


def test_withdrawn_it_takes_no_new_connection_and_may_be_withdrawn_again(tmp_path: Path) -> None:
    with Listener(tmp_path / "s") as listener:
        listener.withdraw()
        assert not can_connect(tmp_path / "s")
        listener.withdraw()


def test_a_stale_file_is_replaced_and_so_is_one_of_a_crash_in_between(tmp_path: Path) -> None:
    stale(tmp_path / "s")
    stale(tmp_path / "s.new")
    with Listener(tmp_path / "s"):
        assert can_connect(tmp_path / "s")


def test_a_stale_file_is_replaced_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "s"
    stale(path)
    done = threading.Event()
    missing: list[bool] = []

    def look() -> None:
        while not done.is_set():
            missing.append(not path.exists())

    looker = threading.Thread(target=look)
    looker.start()
    with Listener(path):
        done.set()
        looker.join()
    assert not any(missing)


def test_a_live_daemon_of_our_kind_keeps_its_socket(tmp_path: Path) -> None:
    with Listener(tmp_path / "s"):
        with pytest.raises(ListenError, match="another daemon is serving"):
            Listener(tmp_path / "s")
        assert can_connect(tmp_path / "s")


def test_a_live_daemon_of_another_kind_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(str(path))
        other.listen(0)
        with pytest.raises(ListenError, match="another daemon is serving"):
            Listener(path)
        # Its backlog is full of the probe now: as good a sign of life.
        with pytest.raises(ListenError, match="another daemon is serving"):
            Listener(path)
    with Listener(path):  # and none of the refusals holds the lock
        assert can_connect(path)


def test_what_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(ListenError, match="not a socket"):
        Listener(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "precious"


def test_the_file_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    with Listener(tmp_path / "s"):
        (tmp_path / "s").unlink()
        stale(tmp_path / "s")
    assert (tmp_path / "s").exists()


@pytest.mark.parametrize("name", ["absent/s", "x" * 120])
def test_a_path_that_cannot_be_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"No such file|too long"):
        Listener(tmp_path / name)
    assert not any(path.is_socket() for path in tmp_path.iterdir())
