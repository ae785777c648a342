"""What coild tells the EIP agent of its node before a pod starts, over the agent's Unix socket.

coild ── POST /v1/pod-starts {"namespace": …, "name": …, "uid": …, "addresses": […]} ──► agent
      ◄── 204: its policies hold for these addresses      503: they do not, with a sentence that says why ──
"""

from typing import Final

from coil.crd.meta import Struct

PATH: Final = "/v1/pod-starts"
LARGEST: Final = 4096
"""Bytes of a request."""


class PodStart(Struct, frozen=True, kw_only=True):
    """A pod whose interface is made, and its addresses. `uid` is empty where the runtime does not pass it."""

    namespace: str
    name: str
    addresses: tuple[str, ...]
    uid: str = ""

    @property
    def key(self) -> str:
        """As caches have it."""
        return f"{self.namespace}/{self.name}"
