"""Settings from a command line and an environment: what wins, what is refused and in which words."""

from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_boolean,
    parse_duration,
    parse_endpoint,
    parse_integer,
    parse_optional_path,
    parse_path,
    parse_patterns,
    parse_period,
    parse_settings,
    parse_text,
    repeated_flag,
    variable,
)
from coil.runtime.log import LogFormat
from coil.runtime.settings import FrameSettings, health_flag, metrics_flag


@dataclass(frozen=True, kw_only=True)
class Settings(FrameSettings):
    metrics_addr: Endpoint = metrics_flag("127.0.0.1:9384")
    health_addr: Endpoint = health_flag("127.0.0.1:9385")
    gc_interval: float = flag(
        "5m", parse=parse_period, group=Group.POOLS, help="how often unused blocks are looked for"
    )
    pod_table_id: int = flag("116", parse=parse_integer(1, 252), help="routing table; 50% of all bugs")
    compat_calico: bool = flag("false", parse=parse_boolean, help="name veths as Calico does")
    enable_ipam: bool = flag("true", parse=parse_boolean, help="give addresses to pods")
    socket: Path = flag("/run/coild.sock", parse=parse_path, help="where the plugin calls")
    kubeconfig: Path | None = flag("", parse=parse_optional_path, env="KUBECONFIG", help="the API server")
    token: str = flag(None, parse=parse_text, env="TOKEN", help="must be given")
    node_name: str = variable("COIL_NODE_NAME", parse=parse_text, help="the node this runs on")
    zone: str = variable("ZONE", parse=parse_text, help="where it stands", default="here")


GIVEN = {"COIL_NODE_NAME": "node-1", "TOKEN": "t"}


def parse(*arguments: str, environment: Mapping[str, str] = GIVEN) -> Settings:
    return parse_settings(Settings, arguments, environment, program="coild", about="Gives addresses to pods.")


def refusal(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], environment: Mapping[str, str] = GIVEN
) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parse(*arguments, environment=environment)
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()[-1]


def test_defaults() -> None:
    assert parse() == Settings(token="t", node_name="node-1")
    assert parse().metrics_addr == Endpoint("127.0.0.1", 9384)
    assert parse().gc_interval == 300.0
    assert parse().compat_calico is False
    assert parse().enable_ipam is True
    assert parse().kubeconfig is None
    assert parse().log_format is LogFormat.AUTO
    assert parse().stop_timeout == 10.0
    assert parse().zone == "here"


def test_given_values_both_spellings() -> None:
    settings = parse(
        "--metrics-addr=0.0.0.0:1",
        "--gc-interval",
        "1h30m",
        "--pod-table-id=7",
        "--compat-calico",
        "--enable-ipam=false",
        "--log-level=debug",
        "--log-format=text",
        "--socket=/run/x.sock",
    )
    assert settings.metrics_addr == Endpoint("0.0.0.0", 1)
    assert settings.gc_interval == 5400.0
    assert settings.pod_table_id == 7
    assert settings.compat_calico is True
    assert settings.enable_ipam is False
    assert settings.log_level == "debug"
    assert settings.log_format is LogFormat.TEXT
    assert settings.socket == Path("/run/x.sock")


def test_the_command_line_wins_over_the_environment() -> None:
    environment = GIVEN | {"KUBECONFIG": "/env", "ZONE": "there"}
    assert parse(environment=environment).kubeconfig == Path("/env")
    assert parse(environment=environment).zone == "there"
    assert parse("--kubeconfig=/flag", environment=environment).kubeconfig == Path("/flag")
    assert parse("--kubeconfig=", environment=environment).kubeconfig is None


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        parse().token = "other"  # type: ignore[misc] # noqa: S105


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--gc-interval=5",
            'coild: error: --gc-interval: "5" is not a length of time such as "500ms", "30s", "5m" or "1h30m"',
        ),
        (
            "--gc-interval=0s",
            'coild: error: --gc-interval: "0s" is not a length of time above zero, such as "30s" or "5m"',
        ),
        (
            "--metrics-addr=9384",
            'coild: error: --metrics-addr: "9384" is not an address such as ":9386" or "0.0.0.0:9386"',
        ),
        ("--pod-table-id=253", 'coild: error: --pod-table-id: "253" is not a whole number from 1 to 252'),
        ("--pod-table-id=1e1", 'coild: error: --pod-table-id: "1e1" is not a whole number from 1 to 252'),
        ("--compat-calico=yes", 'coild: error: --compat-calico: "yes" is not true or false'),
        ("--socket=", 'coild: error: --socket: "" is not a text of at least one character'),
        (
            "--log-level=loud",
            'coild: error: --log-level: "loud" is not one of debug, info, warning, error',
        ),
        ("--gc-inter=5m", "coild: error: unrecognized arguments: --gc-inter=5m"),
        ("--node-name=x", "coild: error: unrecognized arguments: --node-name=x"),
        ("stray", "coild: error: unrecognized arguments: stray"),
    ],
)
def test_a_refusal_names_flag_value_and_what_is_expected(
    capsys: pytest.CaptureFixture[str], argument: str, message: str
) -> None:
    assert refusal(capsys, [argument]) == message


def test_what_must_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, [], {"TOKEN": "t"}) == "coild: error: COIL_NODE_NAME must be set"
    assert refusal(capsys, [], {"COIL_NODE_NAME": "n"}) == "coild: error: --token or TOKEN must be set"


def test_a_bad_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    environment = GIVEN | {"COIL_NODE_NAME": ""}
    expected = 'coild: error: COIL_NODE_NAME: "" is not a text of at least one character'
    assert refusal(capsys, [], environment) == expected


def test_help_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse("--help")
    assert exit_info.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "Gives addresses to pods.",
        "--gc-interval PERIOD how often unused blocks are looked for (default 5m)",
        "--pod-table-id N routing table; 50% of all bugs (default 116)",
        "--compat-calico [true|false] name veths as Calico does (default false)",
        "--kubeconfig PATH the API server [KUBECONFIG]",
        "--metrics-addr HOST:PORT address of /metrics; without a host, every address (default 127.0.0.1:9384)",
        "environment: COIL_NODE_NAME the node this runs on ZONE where it stands (default here)",
    ):
        assert part in text


def test_help_lists_flags_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    lines = capsys.readouterr().out.splitlines()
    headings = [line for line in lines if line.endswith(":") and line[0] not in " -"]
    assert headings == ["options:", "Address pools and blocks:", "Process:", "Other:", "environment:"]
    pools = lines[lines.index("Address pools and blocks:") + 1 : lines.index("Process:")]
    assert [line.split()[0] for line in pools if line.startswith("  --")] == ["--gc-interval"]


def test_a_parser_without_a_kind_reads_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Two:
        plain: str = flag("", parse=str.strip, help="what")
        named: str = flag("", parse=kind("CIDR")(lambda text: text), help="where")

    with pytest.raises(SystemExit):
        parse_settings(Two, ["--help"], {}, program="x", about="")
    text = capsys.readouterr().out
    assert "--plain VALUE" in text
    assert "--named CIDR" in text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("1h0m0.5s", 3600.5),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        (".5m", 30.0),
        ("2.s", 2.0),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("7ns", 7e-9),
        ("90m", 5400.0),
    ],
)
def test_what_go_accepts(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "5", "5 m", "m", "5x", "-5m", "+5m", "5m ", " 5m", "1h30", "5M", "\u0665s", "1..5s", "inf"]
)
def test_what_it_does_not(text: str) -> None:
    with pytest.raises(ValueError, match='a length of time such as "500ms"'):
        parse_duration(text)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_go_prints_what_it_reads(hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s{milliseconds}ms"
    assert parse_duration(text) == pytest.approx(hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)


@pytest.mark.parametrize("text", ["0", "0s", "0h0m"])
def test_a_period_is_longer_than_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="above zero"):
        parse_period(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":9386", "", 9386),
        ("0.0.0.0:9386", "0.0.0.0", 9386),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::]:9386", "::", 9386),
        ("[fd00::1]:65535", "fd00::1", 65535),
        ("localhost:80", "localhost", 80),
    ],
)
def test_accepted(text: str, host: str, port: int) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint == Endpoint(host, port)
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9386", 'an address such as ":9386"'),
        ("", 'an address such as ":9386"'),
        (":", "a port from 0 to 65535"),
        (":http", "a port from 0 to 65535"),
        (":65536", "a port from 0 to 65535"),
        (":-1", "a port from 0 to 65535"),
        (":٩", "a port from 0 to 65535"),
        ("::1:9386", "an IPv6 address in brackets"),
        ("[127.0.0.1]:9386", "an IPv6 address between the brackets"),
        ("[]:9386", "an IPv6 address between the brackets"),
        ("http//x:80", "an address or a host name"),
    ],
)
def test_refused_saying_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_endpoint(text)


def test_patterns_between_commas() -> None:
    assert [pattern.pattern for pattern in parse_patterns("^cali, ^br-,")] == ["^cali", "^br-"]
    assert parse_patterns("") == ()
    with pytest.raises(ValueError, match=r"such as \^cali,\^br-: .*unterminated"):
        parse_patterns("^cali[")


@dataclass(frozen=True, kw_only=True)
class Files:
    filename: tuple[Path, ...] = repeated_flag(parse=parse_path, short="-f", help="files")
    table: tuple[int, ...] = repeated_flag("1", "2", parse=parse_integer(1, 9), help="tables")


def test_a_flag_that_may_be_given_several_times(capsys: pytest.CaptureFixture[str]) -> None:
    def files(*arguments: str) -> Files:
        return parse_settings(Files, arguments, {}, program="p", about="")

    assert files() == Files(filename=(), table=(1, 2))
    assert files("-f", "b", "--filename=a", "--table=3") == Files(filename=(Path("b"), Path("a")), table=(3,))
    with pytest.raises(SystemExit):
        files("--table=3", "--table=10")
    assert capsys.readouterr().err.endswith('p: error: --table: "10" is not a whole number from 1 to 9\n')
