"""What the installer's first version put beside the plugin: the folder `.coil`, with the plugin's modules in one file.

The plugin was a script then, which read that file when it started. Nothing refers to it any more.
"""

import os
import re
import shutil
from pathlib import Path

from coil_installer.durable_file import sync_directory

FOLDER = ".coil"
_OURS = re.compile(r"[0-9a-f]{16}|\.[0-9a-f]{16}\.\w+")
"""A bundle had its digest as its name; the second form is what a crash left of one."""


def has_bundles(bin_dir: Path) -> bool:
    """Whether the folder is there, and all in it is of that version's making: anything else is somebody else's."""
    folder = bin_dir / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        return all(_OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False) for entry in entries)


def remove_bundles(bin_dir: Path) -> None:
    """Idempotent; a folder that is not ours stays as it is. Raises OSError."""
    if has_bundles(bin_dir):
        shutil.rmtree(bin_dir / FOLDER)
        sync_directory(bin_dir)
