"""Numbers for names: what nftables' sets call a class or a policy.

A name has the same number in every process, so one that takes over what an earlier one has left need not write it anew.
"""

from hashlib import blake2s

from coil.kernel.nft_element import class_word

_COUNT = 0xFFFF * 0xFFFF
"""Of numbers that `class_word` has words for."""


class Numbering:
    """Two names never have one number at a time. Where they should, the later one gets the next that is free; that is
    the one case where the number depends on more than the name.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """The word of its number (`coil.kernel.nft_element`). Not idempotent: ask once, and give it back once."""
        number = int.from_bytes(blake2s(name.encode(), digest_size=8).digest())
        while (word := class_word(number % _COUNT + 1)) in self._taken:
            number += 1
        self._taken.add(word)
        return word

    def give_back(self, word: str) -> None:
        """Nobody uses it any more."""
        self._taken.discard(word)
