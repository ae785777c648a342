"""Debian 12's package sources among all those of a machine."""

import pytest

from integration.image.base import PackageSource, first_mirror, wanted_sources
from integration.image.error import ImageBuildError

STANZAS = """\
# the machine's
Types: deb deb-src
URIs: http://mirror.test/debian
# http://old.test/debian
Suites: bookworm-updates bookworm
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
Enabled: no
URIs: http://disabled.test/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.test/debian
Suites: bookworm
Components: main
"""
LINES = """\
deb [arch=amd64 signed-by=/x.gpg] http://security.test/debian-security bookworm-security main
deb-src http://security.test/debian-security bookworm-security main
# deb http://no.test/debian bookworm main
deb http://other.test/tool nodistro main
deb http://other.test/more bookworm contrib
"""
RELEASE = PackageSource("http://mirror.test/debian", "bookworm")


def test_the_release_comes_first() -> None:
    assert wanted_sources([LINES, STANZAS]) == [
        RELEASE,
        PackageSource("http://mirror.test/debian", "bookworm-updates"),
        PackageSource("http://security.test/debian-security", "bookworm-security"),
    ]


def test_each_once() -> None:
    assert wanted_sources(["deb http://mirror.test/debian bookworm main\n" * 2]) == [RELEASE]


@pytest.mark.parametrize("texts", [[], [""], [LINES], ["deb http://mirror.test/debian trixie main\n"]])
def test_a_machine_without_it(texts: list[str]) -> None:
    with pytest.raises(ImageBuildError, match="bookworm"):
        wanted_sources(texts)


def test_the_first_of_a_list_of_mirrors() -> None:
    text = "# nearest\n\nhttp://mirror.test/debian priority:1\nhttp://other.test/debian\n"
    assert first_mirror(text) == "http://mirror.test/debian"
    with pytest.raises(ImageBuildError, match="empty"):
        first_mirror("# none\n")
