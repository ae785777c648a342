"""Which files a COPY takes."""

from pathlib import Path, PurePosixPath

import pytest

from integration.image.context import ContextError, copied_files, parse_ignore

OWN = (Path(__file__).resolve().parents[2] / ".dockerignore").read_text()


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("*.md", "README.md", True),
        ("*.md", "docs/README.md", False),
        ("**/*.md", "README.md", True),
        ("**/*.md", "docs/deep/README.md", True),
        ("docs", "docs/README.md", True),
        ("docs", "docs2", False),
        ("/docs/", "docs/README.md", True),
        ("*\n!docs", "docs/README.md", False),
        ("*\n!docs\n**/x", "docs/x/README.md", True),
        ("!docs\n*", "docs/README.md", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
        ("# *\n\n", "README.md", False),
        (OWN, "services/coild/main.py", False),
        (OWN, "cni/coil_cni/__pycache__/main.cpython-311.pyc", True),
        (OWN, "pyproject.toml", False),
        (OWN, ".git/config", True),
        (OWN, "tests/conftest.py", True),
    ],
)
def test_ignored(text: str, path: str, expected: bool) -> None:
    assert parse_ignore(text)(path) is expected


def test_files_in_order_with_their_places(tmp_path: Path) -> None:
    for name in ("b/z.py", "b/a/y.py", "b/__pycache__/z.pyc", "one"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    files = list(copied_files(tmp_path, ["one", "b/"], "/source/", ignores=parse_ignore("**/__pycache__")))
    assert [(file.content, file.target) for file in files] == [
        (b"one", PurePosixPath("/source/one")),
        (b"b/a/y.py", PurePosixPath("/source/a/y.py")),
        (b"b/z.py", PurePosixPath("/source/z.py")),
    ]


def test_of_its_mode_only_who_may_run_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    modes = []
    for mode in (0o600, 0o664, 0o700, 0o755):
        path.chmod(mode)
        [file] = copied_files(tmp_path, ["file"], "/", ignores=parse_ignore(""))
        modes.append(file.mode)
    assert modes == [0o644, 0o644, 0o755, 0o755]


def test_nothing_to_copy_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "left-out").touch()
    for name in ("missing", "left-out"):
        with pytest.raises(ContextError, match=name):
            list(copied_files(tmp_path, [name], "/source/", ignores=parse_ignore("left-out")))
    with pytest.raises(ContextError, match="folder"):
        list(copied_files(tmp_path, ["left-out"], "/source", ignores=parse_ignore("")))
