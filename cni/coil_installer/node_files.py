"""Installing on a node and removing from it. Both may be interrupted anywhere and run again."""

import json
import subprocess
from pathlib import Path

from coil_installer.bundle import build_bundle
from coil_installer.durable_file import remove_file, staged_file, write_file
from coil_installer.error import InstallError
from coil_installer.launcher import HIDDEN, render_launcher
from coil_installer.settings import Place, Settings

_TRIAL_SECONDS = 10


def install(settings: Settings) -> None:
    """Bundle, launcher, configuration, in this order; what is there already stays untouched.

    The launcher is tried out before it takes its place. A plugin that started before that finds its own bundle:
    the replaced one is kept until the next replacement. Raises InstallError or OSError; then the node still has
    what it had, apart from files that nothing refers to.
    """
    place = settings.place
    bundle = build_bundle(settings.plugin_source)
    launcher = render_launcher(settings.interpreter, bundle.digest).encode()
    hidden = place.bin_dir / HIDDEN
    hidden.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_file(hidden / bundle.digest, bundle.data, mode=0o644)
    path = place.bin_dir / "coil"
    replaced = path.read_bytes() if path.is_file() else b""
    if replaced != launcher or path.stat().st_mode & 0o777 != 0o755:
        with staged_file(path, launcher, mode=0o755) as staged:
            _try_out(staged)
        for old in hidden.iterdir():
            if old.name != bundle.digest and old.name.encode() not in replaced:
                remove_file(old)
    place.conf_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_file(place.conf_dir / place.conf_name, settings.netconf.encode(), mode=0o644)


def uninstall(place: Place) -> None:
    """Everything that `install` puts on a node, in the opposite order. What is absent is passed over."""
    remove_file(place.conf_dir / place.conf_name)
    remove_file(place.bin_dir / "coil")
    hidden = place.bin_dir / HIDDEN
    if hidden.is_dir():
        for bundle in hidden.iterdir():
            remove_file(bundle)
        hidden.rmdir()


def _try_out(launcher: Path) -> None:
    """VERSION needs no daemon, and touches every part that an installation can get wrong."""
    try:
        answer = subprocess.run(
            [launcher],
            env={"CNI_COMMAND": "VERSION"},
            input=b"",
            capture_output=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"the plugin cannot be run with the given COIL_PYTHON: {error}") from error
    try:
        ok = answer.returncode == 0 and json.loads(answer.stdout)["supportedVersions"]
    except (ValueError, KeyError, TypeError):
        ok = False
    if not ok:
        said = (answer.stderr or answer.stdout).decode(errors="replace").strip()
        raise InstallError(f"the plugin does not answer with the given COIL_PYTHON: {said}")
