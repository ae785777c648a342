"""Debian 13's package sources among all those of a machine, or in the place of the machine's own release."""

import pytest

from integration.image import base
from integration.image.base import PackageSource, describe_base, first_mirror, wanted_sources
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
MIRROR, SECURITY = "http://mirror.test/debian", "http://security.test/debian-security"
WANTED = [
    PackageSource(MIRROR, "trixie"),
    PackageSource(MIRROR, "trixie-updates"),
    PackageSource(SECURITY, "trixie-security"),
]


@pytest.mark.parametrize("machine", ["bookworm", "trixie", "forky"])
def test_the_release_comes_first(machine: str) -> None:
    texts = [text.replace("bookworm", "trixie") for text in (LINES, STANZAS)]
    assert wanted_sources(texts, machine=machine) == WANTED


@pytest.mark.parametrize("machine", ["bookworm", "forky"])
def test_on_another_release_its_places_have_it(machine: str) -> None:
    texts = [text.replace("bookworm", machine) for text in (LINES, STANZAS)]
    assert wanted_sources(texts, machine=machine) == WANTED


def test_what_is_listed_counts_and_not_the_machines_own() -> None:
    both = f"deb http://own.test/debian bookworm main\ndeb {MIRROR} trixie main\n"
    assert wanted_sources([both], machine="bookworm") == WANTED[:1]


def test_each_once() -> None:
    assert wanted_sources([f"deb {MIRROR} trixie main\n" * 2], machine="bookworm") == WANTED[:1]


@pytest.mark.parametrize("texts", [[], [""], [LINES], [f"deb {MIRROR} sid main\n"]])
def test_a_machine_without_it(texts: list[str]) -> None:
    with pytest.raises(ImageBuildError, match="trixie"):
        wanted_sources(texts, machine="bookworm")


def test_the_first_of_a_list_of_mirrors() -> None:
    text = "# nearest\n\nhttp://mirror.test/debian priority:1\nhttp://other.test/debian\n"
    assert first_mirror(text) == "http://mirror.test/debian"
    with pytest.raises(ImageBuildError, match="empty"):
        first_mirror("# none\n")


def test_each_architecture_has_a_base_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "machine_sources", lambda: WANTED)
    monkeypatch.setattr(base, "_own_certificates", lambda: iter(()))
    assert describe_base("amd64") == describe_base("amd64") != describe_base("arm64")
