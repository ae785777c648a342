"""Every setting that is wrong, and the sentence that says so."""

import json
from pathlib import Path

import pytest

from coil_installer.settings import InstallError, parse_settings
from tests.coil_installer.node import CONFLIST, environ_of


def test_defaults_are_those_of_an_init_container(tmp_path: Path) -> None:
    (tmp_path / "coil").touch()
    settings = parse_settings({"CNI_NETCONF": json.dumps(CONFLIST), "COIL_PATH": str(tmp_path / "coil")})
    assert settings.folders.conf_dir == Path("/host/etc/cni/net.d")
    assert settings.folders.conf_name == "10-coil.conflist"
    assert settings.folders.bin_dir == Path("/host/opt/cni/bin")


def test_netconf_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text(json.dumps(CONFLIST))
    environ = environ_of(tmp_path, CNI_NETCONF="", CNI_NETCONF_FILE=str(tmp_path / "conf"))
    assert json.loads(parse_settings(environ).netconf) == CONFLIST


def test_kuryrs_name_and_configuration_without_a_list(tmp_path: Path) -> None:
    conf = {"name": "kuryr-network", "type": "kuryr", "api_token": "not-needed"}
    environ = environ_of(tmp_path, CNI_CONF_NAME="10-kuryr.conf", CNI_PLUGIN_NAME="kuryr", CNI_NETCONF=json.dumps(conf))
    settings = parse_settings(environ)
    assert (settings.folders.conf_name, settings.folders.plugin_name) == ("10-kuryr.conf", "kuryr")
    assert json.loads(settings.netconf) == conf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"CNI_NETCONF": ""}, "set one of CNI_NETCONF and CNI_NETCONF_FILE"),
        ({"CNI_NETCONF_FILE": "/a"}, "set one of CNI_NETCONF and CNI_NETCONF_FILE"),
        ({"CNI_NETCONF": "", "CNI_NETCONF_FILE": "/nowhere/conf"}, "CNI_NETCONF_FILE cannot be read"),
        ({"CNI_CONF_NAME": "../10-coil.conflist"}, "CNI_CONF_NAME"),
        ({"CNI_CONF_NAME": "10-coil.json"}, "CNI_CONF_NAME"),
        ({"CNI_CONF_NAME": "10-coil.conf"}, "type is None, not 'coil'"),
        ({"CNI_PLUGIN_NAME": "../coil"}, "CNI_PLUGIN_NAME"),
        ({"CNI_PLUGIN_NAME": "kuryr"}, "no entry of plugins has the type kuryr"),
        ({"CNI_ETC_DIR": "etc"}, "CNI_ETC_DIR must be an absolute path"),
        ({"CNI_BIN_DIR": "bin"}, "CNI_BIN_DIR must be an absolute path"),
        ({"COIL_PATH": "/nowhere/coil"}, "COIL_PATH has no file /nowhere/coil; build it with: .* /nowhere/coil"),
        ({"COIL_PATH": "/"}, "COIL_PATH has no file"),
    ],
)
def test_bad_settings(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(InstallError, match=message):
        parse_settings(environ_of(tmp_path, **changes))
