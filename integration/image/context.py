"""Which files of the checkout a COPY takes: those below its sources that .dockerignore does not leave out."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


class ContextError(Exception):
    """A COPY names nothing; the message says what."""


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A regular file as it was read, and where it is put.

    Its content is held: what a layer is named by is what comes into it, also while somebody edits the checkout.
    """

    target: PurePosixPath
    content: bytes
    executable: bool

    @property
    def mode(self) -> int:
        """The umask under which somebody checked the files out makes no difference."""
        return 0o755 if self.executable else 0o644


def parse_ignore(text: str) -> Callable[[str], bool]:
    """.dockerignore as a question about a path that is relative to the checkout; the last pattern that fits decides.

    A pattern that fits a folder fits all below it. `*` ends at a `/`, `**` is any number of folders, `!` takes back.
    """
    lines = [line.strip() for line in text.splitlines()]
    rules = [
        (not line.startswith("!"), re.compile(_expression(line.removeprefix("!").strip("/"))))
        for line in lines
        if line and not line.startswith("#")
    ]

    def ignores(path: str) -> bool:
        fitting = (ignored for ignored, rule in reversed(rules) if rule.fullmatch(path))
        return next(fitting, False)

    return ignores


def _expression(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    known = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(known.get(part, re.escape(part)) for part in parts) + "(?:/.*)?"


def copied_files(
    root: Path, sources: Sequence[str], target: str, *, ignores: Callable[[str], bool]
) -> Iterator[CopiedFile]:
    """In a fixed order. A folder's content goes to `target`, a file below it. Raises ContextError for a missing one."""
    if not target.endswith("/"):
        raise ContextError(f"COPY to {target}: only a folder, with a final /, is known")
    for name in sources:
        path = root / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        taken = [file for file in files if file.is_file() and not ignores(str(file.relative_to(root)))]
        if not taken:
            raise ContextError(f"COPY {name}: there is no such file, or .dockerignore leaves it out")
        above = path if path.is_dir() else path.parent
        for file in taken:
            place = PurePosixPath(target) / file.relative_to(above)
            yield CopiedFile(place, file.read_bytes(), executable=bool(file.stat().st_mode & 0o100))
