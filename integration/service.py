"""A program under test that dies and is started again in its place, as a kubelet does it with a container."""

from collections.abc import Callable

from integration.cluster.process import Process

START_TIMEOUT = 180.0  # seconds to be ready, on a machine that does much else
REAP_TIMEOUT = 60.0  # seconds in which a killed process must be gone


class ServiceError(Exception):
    """The program ended by itself; the message has the end of its log."""


class Service:
    """`spawn` starts the program, `ready` asks whether it does its work, which it must within `patience` seconds.

    All its lives log into one file.
    """

    def __init__(
        self, spawn: Callable[[], Process], *, ready: Callable[[], bool], patience: float = START_TIMEOUT
    ) -> None:
        self._ready = ready
        self._patience = patience
        self._spawn = spawn
        self.process = spawn()

    def wait_ready(self) -> None:
        """Return when it does its work. Raises ComponentError when it does not, or has ended."""
        self.process.wait_ready(self._ready, timeout=self._patience)

    def kill(self) -> None:
        """kill -9. Raises ServiceError when it was not alive: nothing but the test may end it."""
        if (code := self.process.poll()) is not None:
            raise ServiceError(str(self.process.failure(f"ended by itself, with code {code}")))
        self.process.kill()
        self.process.wait(REAP_TIMEOUT)

    def start(self) -> None:
        """Start it again after its end, without waiting for it to be ready."""
        self.process = self._spawn()

    def crash(self) -> None:
        """Kill it and start it again at once."""
        self.kill()
        self.start()

    def ensure_running(self) -> None:
        """Start it again if a test has left it dead, and return when it is ready."""
        if self.process.poll() is not None:
            self.start()
        self.wait_ready()
