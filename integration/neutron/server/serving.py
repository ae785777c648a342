"""Serves a WSGI application in one process with one thread: sqlite locks its whole file."""

from typing import Any


def serve(application: Any, port: int, *, address: str = "127.0.0.1") -> None:
    """Serve until the process is told to stop."""
    from gunicorn.app.base import BaseApplication

    class Server(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            settings = {"bind": f"{address}:{port}", "workers": 1, "threads": 1, "timeout": 120, "keepalive": 75}
            for name, value in {**settings, "control_socket_disable": True}.items():
                if name in self.cfg.settings:
                    self.cfg.set(name, value)

        def load(self) -> Any:
            return application

    Server().run()
