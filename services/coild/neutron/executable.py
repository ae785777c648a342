"""Ports of a type that an executable of that name plugs in, as Kuryr's binding scripts do (/usr/libexec/kuryr).

    FOLDER/TYPE bind PORT IFNAME ENDPOINT MAC NETWORK TENANT
    FOLDER/TYPE unbind PORT IFNAME ENDPOINT MAC

It runs as root, so it is the administrator's alone: the folder and the file belong to root, and nobody else may write
to them. The type has been parsed and is never a path, no shell is started, and no argument begins with a hyphen. An
executable has a bounded time; at its end, or if whoever waits is cancelled, it is killed with its process group. What
it wrote goes into the error, up to `OUTPUT_BYTES`; a status other than 0 is a failure.
"""

import asyncio
import os
import re
import signal
import stat
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from coil.neutron.handoff import parse_binding_type
from coild.model.port_error import BindError, BindTimeoutError, PortTypeUnknownError
from coild.neutron.binding import PortBinding
from coild.neutron.undoing import UNDO_SECONDS, undone_if_failed

OUTPUT_BYTES: Final = 4096
"""Of what an executable writes, so much is read for the error; the rest is thrown away."""
_GRACE_SECONDS: Final = 1.0
"""For the rest of the output, once the executable has ended: something that it left in the background may have it. And
for the kernel to end one that was killed.
"""
_READ_BYTES: Final = 65536
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
"""All of it: coild's own says nothing that concerns the network of pods."""
_ARGUMENT: Final = re.compile(r"(?!-)[A-Za-z0-9._:@-]{0,128}")


class ExecutableBinding:
    """Implements `coild.neutron.binding.Binding` for one type. `owner` is who must own the file: root, but in tests."""

    def __init__(self, folder: Path, type_: str, *, owner: int = 0) -> None:
        self._path = folder / parse_binding_type(type_)
        self._owner = owner

    async def prepare(self, bound: Collection[PortBinding]) -> None:
        """See `Binding`. An executable has only these two commands."""

    async def bind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`. PortTypeUnknownError, where there is no executable that may be run.

        One that failed, or was killed, is called with `unbind`. If that fails as well, the error is not `undone`.
        """
        port = binding.port
        arguments = (*_common(binding), port.network, port.project)
        await undone_if_failed(
            self._run("bind", arguments, timeout=timeout), lambda: self.unbind(binding, timeout=UNDO_SECONDS)
        )

    async def apply_rules(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`. Neutron's agent on the node enforces them."""

    async def unbind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`. PortTypeUnknownError as in `bind`."""
        await self._run("unbind", _common(binding), timeout=timeout)

    async def _run(self, command: str, arguments: tuple[str, ...], *, timeout: float) -> None:
        for argument in arguments:
            if _ARGUMENT.fullmatch(argument) is None:
                raise BindError(f"{argument!r} is no argument for {self._path}")
        check_executable(self._path, owner=self._owner)
        output = _Output()
        try:
            status = await self._wait(command, arguments, output, timeout=timeout)
        finally:
            output.close()
        if status != 0:
            how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
            raise BindError(output.added_to(f"{self._path} {command} {how}"))

    async def _wait(self, command: str, arguments: tuple[str, ...], output: "_Output", *, timeout: float) -> int:
        """Its exit status; negative for a signal."""
        try:
            process = await asyncio.create_subprocess_exec(
                self._path,
                command,
                *arguments,
                stdin=DEVNULL,
                stdout=output.descriptor,
                stderr=output.descriptor,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise BindError(f"{self._path} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(timeout):
                status = await process.wait()
        except TimeoutError:
            text = f"{self._path} {command} has not ended within {timeout:g} s and was killed"
            raise BindTimeoutError(output.added_to(text)) from None
        finally:
            await _kill(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await output.wait_end()
        return status


class _Output:
    """What an executable writes: the beginning of it, and the rest is read and thrown away, so that it never waits for
    us. Closed in the end.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin = bytearray()
        self._ended = asyncio.Event()
        self._reading, self.descriptor = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The other end is the executable's, which does not expect that a write may have to be repeated.
        os.set_blocking(self.descriptor, True)
        self._loop.add_reader(self._reading, self._receive)

    async def wait_end(self) -> None:
        """Until nobody can write any more."""
        self._close_writing()
        await self._ended.wait()

    def added_to(self, text: str) -> str:
        """The text, with what has come so far on the same line."""
        words = " ".join(self._begin.decode(errors="replace").split())
        return f"{text}: {words}" if words else text

    def close(self) -> None:
        self._close_writing()
        self._loop.remove_reader(self._reading)
        os.close(self._reading)

    def _close_writing(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _receive(self) -> None:
        if chunk := os.read(self._reading, _READ_BYTES):
            self._begin += chunk[: OUTPUT_BYTES - len(self._begin)]
        else:
            self._loop.remove_reader(self._reading)
            self._ended.set()


def check_executable(path: Path, *, owner: int = 0) -> None:
    """Return if the file is there, may be run, and can be changed by root alone.

    Raises PortTypeUnknownError where there is none, and BindError naming what is wrong with it.
    """
    folder = _look(path.parent, path)
    found = _look(path, path)
    if not stat.S_ISDIR(folder.st_mode) or not stat.S_ISREG(found.st_mode):
        raise BindError(f"{path} is not a regular file in a folder: links are not followed")
    for place, status in ((path.parent, folder), (path, found)):
        if status.st_uid != owner:
            raise BindError(f"{place} is to be run as root, but belongs to user {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BindError(f"{place} is to be run as root, but others may write to it: chmod go-w {place}")
    if not found.st_mode & stat.S_IXUSR:
        raise BindError(f"{path} is not executable: chmod u+x {path}")


def _look(place: Path, path: Path) -> os.stat_result:
    try:
        return place.lstat()
    except FileNotFoundError:
        raise PortTypeUnknownError(f"there is no {path}") from None
    except OSError as error:
        raise BindError(f"{place} cannot be looked at: {error.strerror}") from error


def _common(binding: PortBinding) -> tuple[str, ...]:
    return (binding.port.port, binding.ifname, binding.endpoint, binding.port.mac)


async def _kill(process: Process) -> None:
    """The executable and all of its process group, unless it has ended. Cancelled, it has been sent the signal."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    ending = asyncio.ensure_future(process.wait())
    try:
        # No longer: one that hangs in the kernel ends when that lets it go.
        await asyncio.wait({ending}, timeout=_GRACE_SECONDS)
    finally:
        ending.cancel()
