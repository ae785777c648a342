"""The binding `midonet`: MidoNet's agent on the node is told which link a port is (midolman's REST API on its Unix
socket, as `mm-ctl` uses it). It knows all else of the port itself.

    PUT    /binding/PORT   {"interfaceName": LINK}
    DELETE /binding/PORT

Written from MidoNet's public documentation, and not tried with MidoNet.
"""

from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp

from coild.model.port_error import BindError, BindTimeoutError
from coild.neutron.binding import PortBinding
from coild.neutron.executable import OUTPUT_BYTES
from coild.neutron.undoing import UNDO_SECONDS, undone_if_failed

MIDONET: Final = "midonet"
"""The type of its ports."""


class MidonetBinding:
    """Implements `coild.neutron.binding.Binding`. `socket` is midolman's. One per process."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def prepare(self, bound: Collection[PortBinding]) -> None:
        """See `Binding`. Where ports are bound, the agent has to be there."""
        if bound and not self._socket.is_socket():
            raise BindError(f"there is no socket {self._socket}: is midolman running?")

    async def bind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`."""
        await undone_if_failed(
            self._ask("PUT", binding, {"interfaceName": binding.ifname}, timeout=timeout),
            lambda: self.unbind(binding, timeout=UNDO_SECONDS),
        )

    async def apply_rules(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`. MidoNet enforces them."""

    async def unbind(self, binding: PortBinding, *, timeout: float) -> None:
        """See `Binding`."""
        await self._ask("DELETE", binding, None, timeout=timeout)

    async def _ask(self, method: str, binding: PortBinding, body: dict[str, str] | None, *, timeout: float) -> None:
        port = binding.port.port
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket)), timeout=limit) as session,
                session.request(method, f"http://midolman/binding/{port}", json=body) as answer,
            ):
                text = (await answer.content.read(OUTPUT_BYTES)).decode(errors="replace")
        except TimeoutError:
            raise BindTimeoutError(f"midolman at {self._socket} has not answered within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BindError(f"midolman at {self._socket} cannot be asked: {error}") from error
        if method == "DELETE" and answer.status == HTTPStatus.NOT_FOUND:
            return
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            words = " ".join(text.split())
            raise BindError(f"midolman refuses {method} /binding/{port} with status {answer.status}: {words}")
