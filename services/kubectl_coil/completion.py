"""Completion of `kubectl coil` in the shells that kubectl completes in: the program `kubectl_complete-coil`.

kubectl runs it with the words after `kubectl coil`, the last of which is being written, and reads a completion a line,
with a description after a tab, and at the end a number that says what the shell is to add of its own (kubectl,
pkg/cmd/plugin; cobra's ShellCompDirective).
"""

import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum

from click.shell_completion import ShellComplete

from kubectl_coil.main import cli


class Directive(IntEnum):
    DEFAULT = 0
    """The shell completes names of files."""
    NO_FILES = 4


_FILE_TYPES = ("file", "dir")


def complete(words: Sequence[str]) -> Iterator[str]:
    """The lines to print; the last word may be empty."""
    *before, last = words or [""]
    option, equals, value = last.partition("=") if last.startswith("--") else (last, "", "")
    if equals:
        before, last = [*before, option], value
    items = ShellComplete(cli, {}, "kubectl coil", "").get_completions(before, last)
    for item in items:
        if item.type not in _FILE_TYPES:
            yield "\t".join(filter(None, (f"{option}=" * bool(equals) + str(item.value), item.help)))
    wants_files = any(item.type in _FILE_TYPES for item in items)
    yield f":{Directive.DEFAULT if wants_files else Directive.NO_FILES}"


def main() -> int:
    print(*complete(sys.argv[1:]), sep="\n")  # noqa: T201 - what kubectl reads
    return 0


if __name__ == "__main__":
    sys.exit(main())
