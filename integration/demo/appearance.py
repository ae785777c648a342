"""As whom the server outside saw a pod, and as whom it should have seen it. No input, no output."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearance:
    """One question of a pod: its own address, the one that the server's socket saw, and the one that is right."""

    pod: str
    node: str
    own: str
    seen: str
    expected: str

    def who(self, names: Mapping[str, str]) -> str:
        """Who has the address that was seen; `names` are those of EIPs and nodes by address."""
        if self.seen == self.own:
            return "the pod itself"
        return names.get(self.seen, "nobody that is known here")


def find_mistakes(appearances: Iterable[Appearance], names: Mapping[str, str]) -> list[str]:
    """A sentence for each pod that was seen as somebody else than it should have been."""
    return [
        f"{each.pod} ({each.own}) was seen as {each.seen}, which is {each.who(names)}, and not as {each.expected}"
        for each in appearances
        if each.seen != each.expected
    ]
