"""What is built: the project's own Dockerfile, and none that this way of building would build wrongly."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from integration.image import __main__ as main_module
from integration.image import build as build_module
from integration.image.build import IMAGE, REPOSITORY, Plan, _two_stages, build_image
from integration.image.dockerfile import Run, parse_dockerfile
from integration.image.error import ImageBuildError
from integration.image.layers import name_layers

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


PLAN = Plan(
    architecture="amd64",
    base="base",
    layers=name_layers("base", [Run("true", {})]),
    folder="/image/",
    environment={},
    labels={},
    user="1:1",
)


@pytest.fixture
def amd64(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Whatever machine this is; the cache's folder."""
    monkeypatch.setattr(build_module, "machine_architecture", lambda: "amd64")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "coil"


def test_each_architecture_has_its_archive_in_a_folder_of_its_own(amd64: Path) -> None:
    other = replace(PLAN, architecture="arm64")
    assert other.archive != PLAN.archive
    for plan, name in ((PLAN, "image"), (other, "image-arm64")):
        made = amd64 / name / plan.archive
        made.parent.mkdir(parents=True)
        made.touch()
        assert build_image(plan) == made


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (None, "current")),
        (["--platform=linux/arm64"], ("arm64", "current")),
        (["--locked"], (None, "locked")),
    ],
)
def test_the_platform_is_asked_for_as_docker_does_and_the_packages_as_the_dockerfile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], expected: tuple[str | None, str]
) -> None:
    asked = list[tuple[str | None, str]]()

    def read_plan(architecture: str | None, build_arguments: Mapping[str, str]) -> Plan:
        asked.append((architecture, build_arguments["DEBIAN"]))
        return PLAN

    (tmp_path / "archive").touch()
    monkeypatch.setattr("sys.argv", ["image", *arguments])
    monkeypatch.setattr(main_module, "read_plan", read_plan)
    monkeypatch.setattr(main_module, "build_image", lambda _: tmp_path / "archive")
    assert main_module.main() == 0
    assert asked == [expected]


@pytest.mark.parametrize("platform", ["arm64", "linux/vax", "windows/amd64"])
def test_another_platform_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], platform: str
) -> None:
    monkeypatch.setattr("sys.argv", ["image", f"--platform={platform}"])
    with pytest.raises(SystemExit):
        main_module.main()
    assert "linux/arm64" in capsys.readouterr().err
