"""Entering namespaces with the one capability that a router pod has."""

import subprocess
import sys

import pytest

from integration.netns.netns import Netns

pytestmark = pytest.mark.kernel

ENTER = """
import sys
from pathlib import Path
from coil.netlink.error import NamespaceError
from coil.netlink.namespace import Namespace
with Namespace(Path(sys.argv[1])) if sys.argv[1:] else Namespace.current() as namespace:
    try:
        namespace.enter()
    except NamespaceError as error:
        print(error)
    else:
        print("entered")
"""


def enter(*path: str) -> str:
    """What happens to a process that has NET_ADMIN and nothing else."""
    bound = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all,+net_admin", "--"]
    return subprocess.run(
        [*bound, sys.executable, "-c", ENTER, *path], capture_output=True, text=True, check=True
    ).stdout


def test_ones_own_namespace_needs_no_right() -> None:
    """setns(2) into it is refused all the same: the kernel asks for the right first."""
    assert enter() == "entered\n"
    assert enter("/proc/self/ns/net") == "entered\n"


def test_anothers_namespace_is_refused(host: Netns) -> None:
    assert "Operation not permitted" in enter(str(host.path))
