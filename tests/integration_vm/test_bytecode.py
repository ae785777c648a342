"""The cache files that are made for the guest: the interpreter itself takes them, and only where it has none."""

import os
import subprocess
import sys
from pathlib import Path

from integration.vm.bytecode import missing_bytecode

PROGRAM = "import sys, piece; sys.stdout.write(repr(piece.__cached__ in sys.argv[1:]) + str(piece.VALUE))"


def test_the_interpreter_imports_what_was_made(tmp_path: Path) -> None:
    source = tmp_path / "piece.py"
    source.write_text("VALUE = 1\n")
    os.utime(source, (1_700_000_000.75, 1_700_000_000.75))
    [(cache, content)] = missing_bytecode([source, tmp_path, tmp_path / "absent.py"])
    cache.parent.mkdir()
    cache.write_bytes(content)
    # Same size, same second: nobody but the cache file can tell what it was.
    source.write_text("VALUE = 2\n")
    os.utime(source, (1_700_000_000, 1_700_000_000))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(cache)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "True1"


def test_a_good_one_stays_and_an_old_one_does_not(tmp_path: Path) -> None:
    source = tmp_path / "piece.py"
    source.write_text("VALUE = 1\n")
    [(cache, content)] = missing_bytecode([source])
    cache.parent.mkdir()
    cache.write_bytes(content)
    assert list(missing_bytecode([source])) == []
    source.write_text("VALUE = 10\n")
    [(_, other)] = missing_bytecode([source])
    assert other != content


def test_what_is_no_python_is_passed_over(tmp_path: Path) -> None:
    for name, text in {"wrong.py": "def", "null.py": "\0", "text.txt": "VALUE = 1"}.items():
        (tmp_path / name).write_text(text)
    assert list(missing_bytecode(tmp_path.iterdir())) == []
