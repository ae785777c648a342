"""Has the EIP policies of a pod hold before it starts, by the agent of this node.

A pod that starts is in nobody's tables: what it sends first would leave with its own address. So an ADD is answered
only after the agent has said that the kernel has the pod's addresses, or that no policy selects it
(`coil.eip.pod_start`). Where the agent does not answer, the ADD fails, and the runtime tries again: nobody knows which
policies there are.

An agent of a release that has no socket yet has loaded its tables. Beside it a pod starts as it did with that release,
so an upgrade may replace the two programs of a node in either order.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from coil.eip.eip_set import CURRENT
from coil.eip.eip_table import EipTableOptions, plan_eip_tables
from coil.eip.pod_start import PATH, PodStart
from coil.ipam.occupancy import AttachmentKey
from coil.nft.netfilter import NftError
from coil.nft.table_image import read_image
from coild.model.attachment import Attachment, EgressUnresolvedError

PATIENCE_SECONDS: Final = 15.0
"""How long an ADD waits for an agent that does not answer, as it is being restarted."""
RETRY_SECONDS: Final = 0.1
"""Between two attempts to reach it."""
_TEXT_BYTES: Final = 1024


class EipAgentClient:
    """Implements `coild.model.attachment.PodEgress`. `socket` is the agent's; `has_earlier` tells whether
    one runs that has none, and may block; `patience` is in seconds."""

    def __init__(
        self,
        socket: Path,
        *,
        has_earlier: Callable[[], bool],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._socket = socket
        self._has_earlier = has_earlier
        self._patience = patience
        self._encoder = msgspec.json.Encoder()

    async def connect(self, attachment: Attachment, *, deadline: float) -> None:
        """See `PodEgress`. Waits for an agent that does not answer."""
        pod = attachment.pod
        if pod is None or not attachment.addresses:
            return None
        start = PodStart(
            namespace=pod.namespace, name=pod.name, uid=pod.uid, addresses=tuple(map(str, attachment.addresses))
        )
        trouble = f"nobody has answered at {self._socket}"
        until = min(deadline, asyncio.get_running_loop().time() + self._patience)
        try:
            async with (
                asyncio.timeout_at(until),
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket))) as session,
            ):
                while True:
                    try:
                        return await self._ask(session, start)
                    except (aiohttp.ClientError, OSError) as error:
                        trouble = str(error)
                        if not self._socket.exists() and await asyncio.to_thread(self._has_earlier):
                            return None
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise EgressUnresolvedError(
                f"coil-egress-agent-node has not answered in time whether EIP policies select the pod ({trouble}); "
                "see its pod on this node"
            ) from None

    def forget(self, key: AttachmentKey) -> None:
        """See `PodEgress`. The agent learns from the API server which pods there are."""

    async def _ask(self, session: aiohttp.ClientSession, start: PodStart) -> None:
        async with session.post(f"http://agent{PATH}", data=self._encoder.encode(start)) as answer:
            if answer.status == HTTPStatus.NO_CONTENT:
                return
            text = (await answer.content.read(_TEXT_BYTES)).decode(errors="replace")
        raise EgressUnresolvedError(f"EIP policies of the pod do not hold yet: {text}")


def has_earlier_agent() -> bool:
    """Whether the tables in the process's namespace are those of an agent that has no socket. False where the kernel
    does not tell. Blocks.
    """
    packets, _ = plan_eip_tables(EipTableOptions())
    try:
        image = read_image(packets)
    except NftError:
        return False
    return image is not None and CURRENT.name not in image.sets
