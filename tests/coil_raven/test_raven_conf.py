"""Kuryr's raven.conf as this Raven reads it."""

from collections.abc import Mapping
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest

from coil.openstack.client import connect
from coil_raven.connection import read_settings
from coil_raven.raven_conf import RavenConfError, api_server, parse_raven_conf, read_raven_conf

WORD = "correct-horse"
SAMPLE = f"""\
[DEFAULT]
debug = True
log_dir = /var/log/kuryr

[k8s]
# as Kuryr's guide has it
api_root = https://192.0.2.10:6443
cluster_subnet_pool = 192.168.0.0/16
cluster_external_subnet = 172.16.0.0/16
cluster_service_subnet = 10.0.0.0/24

[keystone_client]
auth_uri = https://192.0.2.5:35357/v2.0/
admin_user = kuryr
admin_tenant_name = service
admin_password = {WORD}%$x
auth_ca_cert = /etc/ssl/stack.pem
auth_insecure = False

[neutron_client]
neutron_uri = https://192.0.2.6:9696
enable_dhcp = False
"""


def write(folder: Path, text: str = SAMPLE) -> Path:
    path = folder / "raven.conf"
    path.write_text(text)
    return path


def refusal(capsys: pytest.CaptureFixture[str], arguments: list[str], environment: Mapping[str, str]) -> str:
    with pytest.raises(SystemExit) as ended:
        read_settings(arguments, environment)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_its_settings_count(tmp_path: Path) -> None:
    settings, environment = read_settings([f"--raven-conf={write(tmp_path)}"], {})
    (supernet,) = settings.supernets
    assert (supernet.network, supernet.length) == (ip_network("192.168.0.0/16"), 24)
    assert [each.services for each in settings.service_cidrs] == [ip_network("10.0.0.0/24")]
    assert settings.public_network == "172.16.0.0/16"
    assert environment == {"KUBERNETES_SERVICE_HOST": "192.0.2.10", "KUBERNETES_SERVICE_PORT": "6443"}


def test_flags_and_environment_win(tmp_path: Path) -> None:
    flags = [f"--raven-conf={write(tmp_path)}", "--supernets=10.0.0.0/8", "--public-network=public"]
    settings, environment = read_settings(flags, {"KUBECONFIG": "/etc/kubeconfig", "KUBERNETES_SERVICE_HOST": "a"})
    assert [each.network for each in settings.supernets] == [ip_network("10.0.0.0/8")]
    assert settings.public_network == "public"
    assert environment["KUBERNETES_SERVICE_HOST"] == "a"


def test_without_the_file_nothing_changes(tmp_path: Path) -> None:
    settings, environment = read_settings([f"--raven-conf={tmp_path / 'none'}"], {"A": "b"})
    assert (settings.public_network, settings.service_cidrs, environment) == ("", (), {"A": "b"})


def test_credentials_are_those_of_a_password(tmp_path: Path) -> None:
    conf = read_raven_conf(write(tmp_path))
    assert conf is not None
    assert conf.credentials == {
        "auth": {
            "auth_url": "https://192.0.2.5:35357",
            "username": "kuryr",
            "project_name": "service",
            "password": f"{WORD}%$x",
            "user_domain_id": "default",
            "project_domain_id": "default",
        },
        "cacert": "/etc/ssl/stack.pem",
        "verify": True,
        "network_endpoint_override": "https://192.0.2.6:9696",
    }
    assert WORD not in repr(conf)
    assert conf.unknown == ("[neutron_client] enable_dhcp",)


def test_openstacksdk_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OS_CLIENT_CONFIG_FILE", raising=False)
    conf = read_raven_conf(write(tmp_path, SAMPLE.replace("auth_ca_cert = /etc/ssl/stack.pem", "")))
    assert conf is not None
    take = partial(connect, None, "", app_name="test")
    with take(fallback=lambda: conf.credentials) as connection:
        assert connection.config.get_auth_args()["username"] == "kuryr"
        assert connection.config.get_endpoint("network") == "https://192.0.2.6:9696"
    monkeypatch.setenv("OS_AUTH_URL", "https://192.0.2.7")
    monkeypatch.setenv("OS_USERNAME", "another")
    with take(fallback=lambda: conf.credentials) as connection:
        assert connection.config.get_auth_args()["username"] == "another"


def test_an_application_credential_has_no_domain() -> None:
    text = "[neutron]\nauth_url=https://k\nauth_type=v3applicationcredential\napplication_credential_id=i\n"
    conf = parse_raven_conf(text + "application_credential_secret=s\n")
    assert conf.credentials == {
        "auth_type": "v3applicationcredential",
        "auth": {"auth_url": "https://k", "application_credential_id": "i", "application_credential_secret": "s"},
    }


def test_options_that_mean_nothing_here_are_named() -> None:
    conf = parse_raven_conf("[k8s]\nssl_verify=1\n[binding]\nveth_dst_prefix=eth\n[DEFAULT]\ndebug=1\n")
    assert conf.unknown == ("[k8s] ssl_verify", "[binding] veth_dst_prefix")
    assert conf.credentials is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"admin_password = {WORD}", "line 1 is neither"),
        (f"[k8s]\n{WORD}\n", "line 2 is neither"),
        ("\N{SNOWMAN}", "line 1 is neither"),
    ],
)
def test_what_is_no_ini_file_is_refused_without_its_words(text: str, said: str) -> None:
    with pytest.raises(RavenConfError, match=said) as raised:
        parse_raven_conf(text)
    assert WORD not in str(raised.value)


def test_what_cannot_be_used_ends_the_start_with_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "[k8s]\ncluster_service_subnet = 10.0.0.1/24\n")
    assert 'raven.conf: [k8s] cluster_service_subnet: "10.0.0.1/24" is not' in refusal(
        capsys, [f"--raven-conf={path}"], {}
    )
    write(tmp_path, "[k8s]\napi_root = http://localhost:8080\n")
    assert "reached with TLS only" in refusal(capsys, [f"--raven-conf={path}"], {})
    assert read_settings([f"--raven-conf={path}", "--kubeconfig=/etc/kubeconfig"], {})[1] == {}
    path.write_bytes(b"\xff\xfe")
    assert str(path) in refusal(capsys, [f"--raven-conf={path}"], {})
    path.write_bytes(b"#" * 300_000)
    assert "bytes" in refusal(capsys, [f"--raven-conf={path}"], {})
    assert "cannot be read" in refusal(capsys, [f"--raven-conf={tmp_path}"], {})


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://192.0.2.1", ("192.0.2.1", 443)),
        ("https://[2001:db8::1]:6443/", ("2001:db8::1", 6443)),
        ("https://api.example:8443", ("api.example", 8443)),
    ],
)
def test_the_api_server(url: str, found: tuple[str, int]) -> None:
    assert api_server(url) == found


@pytest.mark.parametrize("url", ["http://192.0.2.1:8080", "192.0.2.1:6443", "https://:6443", "https://a:70000"])
def test_an_api_server_without_tls_is_refused(url: str) -> None:
    with pytest.raises(RavenConfError):
        api_server(url)
