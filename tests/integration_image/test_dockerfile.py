"""The Dockerfile as stages and steps: the project's own, and what must not be passed over."""

from pathlib import Path

import pytest

from integration.image.dockerfile import Copy, DockerfileError, Run, parse_dockerfile

REPOSITORY = Path(__file__).resolve().parents[2]

TEXT = """\
# of the file
ARG BASE=debian:13-slim

FROM ${BASE} AS build
ENV A=1 B="two words"
RUN first \\
    # between lines
 && second "$A" ${x%%_*}

ARG WHEN=0
COPY one two/ /source/
ENV A=$A:3
RUN touch $WHEN
FROM scratch
COPY --from=build /image/ /
LABEL title=x
USER 1:2
"""


def test_stages_and_steps() -> None:
    build, last = parse_dockerfile(TEXT)
    assert (build.name, build.base) == ("build", "debian:13-slim")
    assert build.steps == [
        Run('first  && second "$A" ${x%%_*}', {"A": "1", "B": "two words"}),
        Copy(("one", "two/"), "/source/"),
        Run("touch $WHEN", {"A": "1:3", "B": "two words", "WHEN": "0"}),
    ]
    assert (last.name, last.base, last.user, last.labels) == ("1", "scratch", "1:2", {"title": "x"})
    assert last.steps == [Copy(("/image/",), "/", "build")]
    assert last.environment == {}


def test_build_arguments_take_the_place_of_what_is_written() -> None:
    build, _ = parse_dockerfile(TEXT, {"WHEN": "1", "BASE": "mine"})
    assert build.base == "mine"
    assert build.steps[2] == Run("touch $WHEN", {"A": "1:3", "B": "two words", "WHEN": "1"})
    with pytest.raises(DockerfileError, match="there is no ARG WHERE"):
        parse_dockerfile(TEXT, {"WHERE": "here", "WHEN": "1"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no FROM"),
        ("RUN x\n", "line 1: RUN x: comes before FROM"),
        ("FROM a\nWORKDIR /x\n", "line 2: WORKDIR /x: not known"),
        ('FROM a\n\nRUN ["x"]\n', "line 3"),
        ("FROM a\nRUN --mount=type=cache,target=/x y\n", "plain shell command"),
        ("FROM a\nRUN <<E\n", "plain shell command"),
        ("FROM a AS\n", "FROM base AS name"),
        ("FROM --platform=x a\n", "FROM base AS name"),
        ("FROM $MISSING\n", "MISSING"),
        ("FROM a\nENV A 1\n", "name=value"),
        ("FROM a\nARG A\n", "name=value"),
        ("FROM a\nCOPY --chown=1 x /\n", "COPY"),
        ("FROM a\nCOPY x\n", "COPY"),
        ("FROM a\nRUN x \\\n", "line 2: goes on"),
    ],
)
def test_what_is_not_known_is_an_error(text: str, said: str) -> None:
    with pytest.raises(DockerfileError, match="^.*" + said.replace("[", r"\[")):
        parse_dockerfile(text)


def test_the_projects_own() -> None:
    build, last = parse_dockerfile((REPOSITORY / "Dockerfile").read_text())
    assert (build.base, last.base) == ("debian:13-slim", "scratch")
    uid, _, gid = last.user.partition(":")
    assert int(uid) > 0
    assert int(gid) > 0
    assert last.environment["COIL_PATH"].startswith("/")


def test_the_projects_own_names_no_host() -> None:
    """Where packages come from is the base's to say, and the builder's."""
    text = (REPOSITORY / "Dockerfile").read_text()
    assert "://" not in text
    assert "index-url" not in text
