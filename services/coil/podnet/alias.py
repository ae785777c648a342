"""The alias of a host link: the record by which coild recognises its pods after a crash.

`COIL:<pool>:<container ID>:<interface>` for a pod with addresses from a pool, `COIL::<pod UID>:<interface>`
behind another plugin. Invariant: what `render_alias` writes, `parse_alias` reads back unchanged.
"""

from dataclasses import dataclass

MARK = "COIL"
MAX_LENGTH = 255
"""IFALIASZ of linux/if.h, without its final zero."""


@dataclass(frozen=True, slots=True)
class PodAlias:
    """Which attachment a host link belongs to.

    `tag` says where its addresses come from: the name of a pool; "" for another plugin, and `container_id` is then
    the pod's UID. Other sources choose tags that cannot be names of pools.
    """

    tag: str
    container_id: str
    ifname: str


def render_alias(alias: PodAlias) -> str:
    """The text for the kernel. Raises ValueError if it would not be read back as the same alias."""
    text = f"{MARK}:{alias.tag}:{alias.container_id}:{alias.ifname}"
    if len(text.encode()) > MAX_LENGTH or parse_alias(text) != alias:
        raise ValueError(f"cannot be a link alias: {text!r}")
    return text


def parse_alias(text: str) -> PodAlias | None:
    """The attachment named by a link's alias, or None where the alias is not one of ours."""
    parts = text.split(":")
    if len(parts) != 4 or parts[0] != MARK or not parts[2] or not parts[3]:
        return None
    return PodAlias(*parts[1:])
