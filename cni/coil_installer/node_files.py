"""Installing on a node and removing from it. Both may be interrupted anywhere and run again.

The plugin's executable must need nothing of the node (elf(5)). The installer's first version left the folder `.coil`
beside the plugin, with the plugin's modules in one file that the plugin, a script then, read when it started; nothing
refers to it any more.
"""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from coil_installer.conflist import install_conflist, uninstall_conflist
from coil_installer.durable_file import is_file_with, remove_file, staged_file, sync_directory, write_file
from coil_installer.settings import InstallError, NodeFolders, Settings

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


_MAGIC = b"\x7fELF"
_64_BIT, _LITTLE_ENDIAN = 2, 1
_PT_DYNAMIC, _PT_INTERP = 2, 3


def check_self_contained(data: bytes) -> None:
    """Raises InstallError when `data` is no 64-bit ELF file, or one that wants a loader or shared libraries."""
    kinds = _segment_kinds(data)
    if not kinds:
        raise InstallError("COIL_PATH is not an executable of 64 bits; build it with python -m coil_freezer")
    if kinds & {_PT_INTERP, _PT_DYNAMIC}:
        raise InstallError("COIL_PATH needs shared libraries, which a node may not have; see python -m coil_freezer")


def _segment_kinds(data: bytes) -> set[int]:
    """p_type of every program header; empty when it is not such a file, or not all of it."""
    if len(data) < 64 or data[:4] != _MAGIC or data[4] != _64_BIT or data[5] != _LITTLE_ENDIAN:
        return set()
    offset = int.from_bytes(data[32:40], "little")  # e_phoff
    size = int.from_bytes(data[54:56], "little")  # e_phentsize
    count = int.from_bytes(data[56:58], "little")  # e_phnum
    if offset + size * count > len(data):
        return set()
    starts = range(offset, offset + size * count, size) if size else ()
    return {int.from_bytes(data[start : start + 4], "little") for start in starts}


_MODE = 0o755
_TRIAL_SECONDS = 10
_LAUNCH_SECONDS = 1.0
"""Within that time a script of the first version, once started, had read its bundle."""


def install(settings: Settings) -> None:
    """The plugin, then the configuration; what is there already stays untouched.

    The plugin is tried out beside its place before it takes it, by one rename: a call finds the old one or the new
    one, whole, and a call under way ends with the file that it began with. Raises InstallError or OSError; then the
    node still has what it had. What the first version of the installer left goes last.
    """
    folders = settings.folders
    data = settings.plugin.read_bytes()
    check_self_contained(data)
    folders.bin_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = folders.bin_dir / folders.plugin_name
    if not is_file_with(path, data, mode=_MODE):
        with staged_file(path, data, mode=_MODE) as staged:
            _try_out(staged)
    folders.conf_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    conf = folders.conf_dir / folders.conf_name
    if folders.is_list:
        install_conflist(conf, settings.netconf)
    else:
        write_file(conf, settings.netconf.encode(), mode=0o644)
    if has_bundles(folders.bin_dir):
        time.sleep(_LAUNCH_SECONDS)
        remove_bundles(folders.bin_dir)


def uninstall(folders: NodeFolders) -> tuple[str, ...]:
    """Remove what `install` puts on a node, in the opposite order. What is absent is passed over. Idempotent.

    Returns the types of the entries of others that remain in the configuration. Raises InstallError or OSError.
    """
    conf, rest = folders.conf_dir / folders.conf_name, tuple[str, ...]()
    if folders.is_list:
        rest = uninstall_conflist(conf)
    else:
        remove_file(conf)
    remove_file(folders.bin_dir / folders.plugin_name)
    remove_bundles(folders.bin_dir)
    return rest


def _try_out(plugin: Path) -> None:
    """VERSION needs no daemon, and answers only if the whole program could be loaded."""
    try:
        answer = subprocess.run(
            [plugin],
            env={"CNI_COMMAND": "VERSION"},
            input=b"",
            capture_output=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"the plugin at COIL_PATH cannot be run: {error}") from error
    try:
        ok = answer.returncode == 0 and json.loads(answer.stdout)["supportedVersions"]
    except (ValueError, KeyError, TypeError):
        ok = False
    if not ok:
        said = (answer.stderr or answer.stdout).decode(errors="replace").strip()
        raise InstallError(f"the plugin at COIL_PATH does not answer: {said}")
