"""What a kernel says that has no nf_tables."""

import errno
import os
from collections.abc import Callable, Iterator

import pytest

from coil.nft import netfilter
from coil.nft.netfilter import NftError, has_nftables

Answer = Callable[..., Iterator[tuple[int, bytes, bool]]]


def refusal(number: int) -> Answer:
    def converse(*_: object, doing: str, **__: object) -> Iterator[tuple[int, bytes, bool]]:
        raise NftError(doing=doing, reason=os.strerror(number), errno=number)

    return converse


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT])
def test_a_kernel_without(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(netfilter, "converse", refusal(number))
    assert not has_nftables()


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOMEM, errno.ENOBUFS, 0])
def test_a_kernel_that_does_not_say(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(netfilter, "converse", refusal(number))
    with pytest.raises(NftError):
        has_nftables()
