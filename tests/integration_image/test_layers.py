"""A layer's name changes with all that goes into it, and with nothing else."""

from dataclasses import replace
from pathlib import PurePosixPath

from integration.image.context import CopiedFile
from integration.image.dockerfile import Run
from integration.image.layers import Input, name_layers

FIRST, LAST = Run("first", {"A": "1"}), Run("last", {})


def names(*steps: Input, base: str = "base") -> list[str]:
    return [layer.name for layer in name_layers(base, steps)]


def test_scripts_variables_and_what_is_below() -> None:
    known = names(FIRST, LAST)
    assert names(FIRST, LAST) == known
    assert names(FIRST, Run("other", {}))[0] == known[0]
    for others in (
        names(FIRST, LAST, base="other"),
        names(Run("other", {"A": "1"}), LAST),
        names(Run("first", {"A": "2"}), LAST),
        names(LAST, FIRST),
    ):
        assert not set(others) & set(known)


def test_files_by_place_content_and_mode() -> None:
    known = CopiedFile(PurePosixPath("/source/file"), b"content", executable=False)
    others = [
        replace(known, target=PurePosixPath("/elsewhere")),
        replace(known, content=b"other"),
        replace(known, executable=True),
    ]
    assert len({name for file in (known, *others) for name in names((file,))}) == 4
    assert names((known, others[0])) != names((others[0], known))
