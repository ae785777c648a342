"""Two hosts on one wire, in a kernel that has Foo-over-UDP. A kernel without it fails the tests: they belong into
`python -m integration.vm` there.
"""

from collections.abc import Callable

import pytest

from integration.fou.end import End, connect
from integration.netns.netns import Netns
from integration.vm.feature import missing_features


@pytest.fixture(scope="session", autouse=True)
def fou_kernel() -> None:
    """The modules are loaded, and everything works that the tests are about."""
    missing = missing_features()
    assert not missing, "\n".join(["run these tests by `python -m integration.vm`: this kernel lacks", *missing])


@pytest.fixture
def ends(new_netns: Callable[[], Netns]) -> tuple[End, End]:
    """Number 1 and number 2, a wire of 1500 bytes between them."""
    ends = End(new_netns(), number=1), End(new_netns(), number=2)
    connect(*ends)
    return ends
