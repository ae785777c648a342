from pathlib import Path

import pytest

from coil.crd.resource import NamespacedName
from coil.runtime.flag import parse_settings
from coil_migrator.settings import DumpSettings, ReplaceSettings


def dump_settings(*arguments: str, **environment: str) -> DumpSettings:
    return parse_settings(DumpSettings, arguments, environment, program="test", about="")


def replace_settings(*arguments: str) -> ReplaceSettings:
    return parse_settings(ReplaceSettings, arguments, {}, program="test", about="")


def test_the_defaults_are_those_of_coil_v2() -> None:
    settings = dump_settings()
    assert settings.etcd_endpoints == ("http://127.0.0.1:2379",)
    assert (settings.etcd_prefix, settings.etcd_timeout) == (b"/coil/", 2.0)
    assert (settings.skip_uninstall, settings.dry_run, settings.kubeconfig) == (False, False, None)
    assert replace_settings().interval == 10.0
    assert replace_settings().coild == NamespacedName("kube-system", "coild")


def test_what_is_given() -> None:
    settings = dump_settings(
        "--etcd-endpoints=https://10.0.0.1:2379, https://[fd00::1]:2379/",
        "--etcd-tls-ca=/ca",
        "--etcd-tls-cert=/crt",
        "--etcd-tls-key=/key",
        "--etcd-username=coil",
        "--dry-run",
        **{"KUBECONFIG": "/config", "ETCD_PASSWORD": "secret"},
    )
    assert settings.etcd.endpoints == ("https://10.0.0.1:2379", "https://[fd00::1]:2379")
    assert (settings.etcd.ca, settings.etcd.certificate, settings.etcd.key) == (Path("/ca"), Path("/crt"), Path("/key"))
    assert (settings.etcd.username, settings.etcd.password) == ("coil", "secret")
    assert (settings.options.dry_run, settings.kubeconfig) == (True, Path("/config"))
    assert replace_settings("--coild=", "--interval=0").options.coild is None


@pytest.mark.parametrize(
    "argument",
    [
        "--etcd-endpoints=",
        "--etcd-endpoints=10.0.0.1:2379",
        "--etcd-endpoints=http://10.0.0.1:2379,",
        "--etcd-endpoints=http://10.0.0.1:x",
        "--etcd-endpoints=http://10.0.0.1:2379/v3",
        "--etcd-endpoints=http://[fd00::1",
        "--etcd-prefix=/coil",
        "--etcd-timeout=0",
        "--timeout=never",
    ],
)
def test_what_cannot_be_meant(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        dump_settings(argument)
    assert end.value.code == 2
    assert argument.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["coild", "/coild", "kube-system/", "a/b/c"])
def test_a_daemon_set_has_a_namespace(name: str) -> None:
    with pytest.raises(SystemExit):
        replace_settings(f"--coild={name}")
