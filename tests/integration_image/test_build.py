"""What is built: the project's own Dockerfile, and none that this way of building would build wrongly."""

import pytest

from integration.image.build import IMAGE, REPOSITORY, _two_stages
from integration.image.dockerfile import parse_dockerfile
from integration.image.error import ImageBuildError

GOOD = "FROM debian:13-slim AS build\nRUN true\nFROM scratch\nCOPY --from=build /image/ /\n"


@pytest.mark.parametrize("text", [GOOD, (REPOSITORY / "Dockerfile").read_text()])
def test_two_stages(text: str) -> None:
    build, last, folder = _two_stages(parse_dockerfile(text))
    assert (build.name, last.base, folder) == ("build", "scratch", "/image/")


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("FROM scratch", "FROM debian:13-slim"),
        ("FROM debian:13-slim", "FROM debian:12-slim"),
        ("--from=build", "--from=other"),
        ("COPY --from=build /image/ /", "COPY --from=build /image/ /elsewhere/"),
        ("COPY --from=build /image/ /", "COPY --from=build /image/ /\nRUN true"),
        ("COPY --from=build /image/ /", "COPY --from=build /image/ /more/ /"),
        ("FROM scratch", "FROM scratch\nFROM scratch"),
    ],
)
def test_another_shape_is_refused(said: str, instead: str) -> None:
    with pytest.raises(ImageBuildError, match="a Dockerfile is a stage from"):
        _two_stages(parse_dockerfile(GOOD.replace(said, instead)))


def test_the_name_has_the_projects_version() -> None:
    name, _, version = IMAGE.partition(":")
    assert name == "coil.test/coil"
    assert f'version = "{version}"' in (REPOSITORY / "pyproject.toml").read_text()
