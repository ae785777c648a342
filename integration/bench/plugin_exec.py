"""Runs CNI plugins as a container runtime does, many at a time, and takes the time of each.

As libcni does it: a new process for each operation, parameters in CNI_* variables, the network configuration on
standard input, the result on standard output. One thread starts and reaps all of them through pidfds, so there is no
scheduling of our own between the plugins; the cost of starting a process (`posix_spawn`, which is a vfork) is the same
for every plugin that is measured.
"""

import os
import select
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from integration.bench.process_state import CpuTime

# A pipe takes this much without a reader (pipe(7)); configurations and results are far smaller.
_PIPE_BYTES = 65536
_SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One exec of a plugin. `netns` is a path; `arguments` goes into CNI_ARGS as it is."""

    plugin: Path
    command: str
    netconf: bytes
    container_id: str = ""
    netns: str = ""
    arguments: str = ""

    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": _SEARCH_PATH,
            "CNI_COMMAND": self.command,
            "CNI_CONTAINERID": self.container_id,
            "CNI_NETNS": self.netns,
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": self.arguments,
            "CNI_PATH": str(self.plugin.parent),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What one operation cost. `seconds` is from just before the spawn until the process has ended; `cpu` is of the
    plugin and of the children that it waited for (getrusage(2))."""

    seconds: float
    cpu: CpuTime
    output: bytes


class PluginError(Exception):
    """A plugin that ended with a code other than 0, or not at all in time."""


class _Running:
    """One plugin between spawn and exit, and the read end of its standard output."""

    def __init__(self, operation: Operation, complaints: int) -> None:
        self.operation = operation
        input_read, input_write = os.pipe()
        output_read, output_write = os.pipe()
        self._output = output_read
        try:
            self.started = time.perf_counter()
            # The configuration waits in the pipe: the plugin reads it to its end without us.
            os.write(input_write, operation.netconf)
            self.pid = os.posix_spawn(
                operation.plugin,
                [str(operation.plugin)],
                operation.environment(),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, input_read, 0),
                    (os.POSIX_SPAWN_DUP2, output_write, 1),
                    (os.POSIX_SPAWN_DUP2, complaints, 2),
                ],
            )
        except OSError:
            os.close(output_read)
            raise
        finally:
            for descriptor in (input_read, input_write, output_write):
                os.close(descriptor)
        self.pidfd = os.pidfd_open(self.pid)

    def reap(self, ended: float) -> Execution:
        """Collect the exit status. Raises PluginError when the plugin says that it failed."""
        try:
            _, status, usage = os.wait4(self.pid, 0)
            output = os.read(self._output, _PIPE_BYTES)
        finally:
            self.close()
        code = os.waitstatus_to_exitcode(status)
        if code:
            what = f"{self.operation.plugin.name} {self.operation.command}"
            raise PluginError(f"{what} ended with code {code}: {output.decode(errors='replace').strip()[:500]}")
        return Execution(seconds=ended - self.started, cpu=CpuTime(usage.ru_utime, usage.ru_stime), output=output)

    def kill(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self._output)


def execute_plugins(
    operations: Iterable[Operation], *, width: int, patience: float = 60.0, complaints: int = 2
) -> list[Execution]:
    """Execute all operations, `width` at a time, in order of their start; executions come in order of their end.

    `patience` bounds the wait for any next plugin to end, in seconds; `complaints` is the descriptor that plugins get
    as standard error. Raises PluginError on the first failure. No plugin is left running, whatever happens.
    """
    waiting = deque(operations)
    running: dict[int, _Running] = {}
    done: list[Execution] = []
    poller = select.poll()
    try:
        while waiting or running:
            while waiting and len(running) < width:
                started = _Running(waiting.popleft(), complaints)
                running[started.pidfd] = started
                poller.register(started.pidfd, select.POLLIN)
            ready = poller.poll(patience * 1000)
            ended = time.perf_counter()
            if not ready:
                raise PluginError(f"none of {len(running)} plugins ended within {patience:.0f} s")
            for descriptor, _ in ready:
                poller.unregister(descriptor)
                done.append(running.pop(descriptor).reap(ended))
    finally:
        for left in running.values():
            left.kill()
    return done
