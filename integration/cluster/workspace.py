"""The identity and lifetime of one cluster: its id, folder and processes, and the guardian that cleans up after it.

A control plane and nodes are built inside a workspace and never clean up after themselves: closing it removes whatever
carries its id. A workspace is held (its owner's death removes it) until it is released to run on by itself.
"""

from __future__ import annotations

import fcntl
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from integration.cluster.cache import clusters_root
from integration.cluster.cleanup import owner_lock, remove_cluster
from integration.cluster.process import Process

_REPOSITORY = Path(__file__).resolve().parents[2]
_REAP_TIMEOUT = 60.0  # seconds in which a child that was killed, or told to end, must be gone


class Workspace:
    """A cluster's place on the machine. Make one with ``create``; a context manager that closes it."""

    def __init__(self, cluster: str, folder: Path, *, lock: IO[str]) -> None:
        self.id = cluster
        self.folder = folder
        self._lock = lock
        self._processes: list[Process] = []
        # Its last words are for when it cannot clean up; the folder is then still there.
        with (folder / "guardian.log").open("wb") as log:
            self._guardian = subprocess.Popen(
                [sys.executable, "-m", "integration.cluster.guardian", cluster],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=_REPOSITORY,
                start_new_session=True,
            )

    @classmethod
    def create(cls) -> Workspace:
        """A new workspace with a random id, guarded from its first moment."""
        cluster = secrets.token_hex(3)
        folder = clusters_root() / cluster
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Locked before there is anything to be seen: no folder is ever without an owner by accident.
        lock = owner_lock(cluster).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(mode=0o700)
        return cls(cluster, folder, lock=lock)

    @property
    def processes(self) -> list[Process]:
        """Every long-running program that was started in the workspace, in that order."""
        return list(self._processes)

    def make_folder(self, *parts: str) -> Path:
        """A folder below the workspace's, made if need be."""
        folder = self.folder.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> Process:
        """Start a long-running program, logging to ``logs/<name>.log``, that ends with the workspace at the latest."""
        log = log or self.make_folder("logs") / f"{name}.log"
        process = Process(name, argv, cluster=self.id, log=log, env=env, cwd=self.folder)
        self._processes.append(process)
        return process

    def forget(self, *names: str) -> None:
        """Programs of these names have ended as they should, and are no longer expected to run."""
        for process in [process for process in self._processes if process.name in names]:
            process.wait(_REAP_TIMEOUT)
            self._processes.remove(process)

    def close(self) -> None:
        """End and remove everything that belongs to the workspace. Idempotent."""
        remove_cluster(self.id)
        for process in self._processes:
            process.wait(_REAP_TIMEOUT)
        self.release()

    def release(self) -> None:
        """Let the workspace run on without an owner: ``remove_cluster`` alone ends it from here on. Idempotent."""
        if self._guardian.stdin is not None and not self._guardian.stdin.closed:
            self._guardian.stdin.write(b"x")
            self._guardian.stdin.close()
            self._guardian.wait(_REAP_TIMEOUT)
        self._lock.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_owned(cluster: str) -> bool:
    """Whether a living process owns the cluster's workspace."""
    try:
        with owner_lock(cluster).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
