"""The crowd against a coild of the test's own: a socket that refuses everybody."""

from pathlib import Path

import pytest

from coil_cni.error import TRY_AGAIN_LATER, CniError
from integration.apiserver.sandbox import PodName, Sandbox
from integration.soak.crowd import Crowd


class FakeSandbox(Sandbox):
    def __init__(self) -> None:
        self.pod = PodName("crowded", "nobody")

    @property
    def netns(self) -> str:
        return "/proc/self/ns/net"


def test_the_first_refusal_ends_it(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path / "nobody.sock", [FakeSandbox(), FakeSandbox()], namespace="crowded")
    with pytest.raises(CniError, match="coild is not there") as refusal:
        crowd.come_and_go(3)
    assert refusal.value.code == TRY_AGAIN_LATER


def test_no_pods_are_no_calls(tmp_path: Path) -> None:
    Crowd(tmp_path / "nobody.sock", [FakeSandbox()], namespace="crowded").come_and_go(0)
