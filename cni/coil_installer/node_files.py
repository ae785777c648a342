"""Installing on a node and removing from it. Both may be interrupted anywhere and run again."""

import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from coil_installer.durable_file import remove_file, staged_file, write_file
from coil_installer.error import InstallError
from coil_installer.executable import check_self_contained
from coil_installer.former_bundle import has_bundles, remove_bundles
from coil_installer.settings import Place, Settings

PLUGIN = "coil"
"""The executable's name on a node: the `type` in a network configuration."""
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
    place = settings.place
    data = settings.plugin.read_bytes()
    check_self_contained(data)
    place.bin_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = place.bin_dir / PLUGIN
    if not _holds(path, data):
        with staged_file(path, data, mode=_MODE) as staged:
            _try_out(staged)
    place.conf_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_file(place.conf_dir / place.conf_name, settings.netconf.encode(), mode=0o644)
    if has_bundles(place.bin_dir):
        time.sleep(_LAUNCH_SECONDS)
        remove_bundles(place.bin_dir)


def uninstall(place: Place) -> None:
    """Everything that `install` puts on a node, in the opposite order. What is absent is passed over."""
    remove_file(place.conf_dir / place.conf_name)
    remove_file(place.bin_dir / PLUGIN)
    remove_bundles(place.bin_dir)


def _holds(path: Path, data: bytes) -> bool:
    with suppress(FileNotFoundError):
        return path.read_bytes() == data and path.stat().st_mode & 0o7777 == _MODE
    return False


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
