"""A process's settings: one frozen dataclass, filled from command line and environment before anything runs.

    @dataclass(frozen=True, kw_only=True)
    class Settings(FrameSettings):
        gc_interval: float = flag("5m", parse=parse_period, group=Group.POOLS, help="interval between two collections")
        node_name: str = variable("COIL_NODE_NAME", parse=parse_text, help="the node this process runs on")

declares `--gc-interval` with that default (underscores become dashes) and a variable that must be set. A
default is text and goes through the same parser as a given value. The command line wins over the
environment, the environment over a configuration file of others (`Configured`), that over the default.
A parser returns the value or raises ValueError with a noun phrase, what it expected; the message for the
user adds name and value. `kind` names what it reads for `--help`, which lists flags by their groups. Spelling follows
Go's pflag: `--name=value`, `--name value`, and for booleans `--name` or `--name=false`.

The parsers that several programs use follow the declaration. Lengths of time and endpoints are written as Go programs
write them: `300ms`, `30s`, `1h30m`; `:9386`, `0.0.0.0:9386`, `[::1]:9386`.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

from coil.kernel.family import IPNetwork

T = TypeVar("T")
Parser = TypeVar("Parser", bound=Callable[[str], Any])

_METADATA = "coil.flag"
_KIND = "coil_flag_kind"
_BOOLEANS = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


class Group(StrEnum):
    """The headings of `--help`, in their order; the same in all programs."""

    API_SERVER = "API server"
    POOLS = "Address pools and blocks"
    AWS = "Network interfaces in AWS"
    NEUTRON = "Ports in OpenStack Neutron"
    PODS = "Pods"
    ROUTES = "Routes"
    EGRESS = "Egress NAT"
    EIP = "Floating egress addresses"
    ETCD = "etcd of Coil v1"
    MIGRATION = "Migration"
    INSPECTION = "Inspection"
    WEBHOOKS = "Webhooks"
    ELECTION = "Leader election"
    PROCESS = "Process"
    OTHER = "Other"


def kind(name: str) -> Callable[[Parser], Parser]:
    """Call what a parser reads by this name in `--help`: PERIOD, HOST:PORT, CIDR."""

    def mark(parse: Parser) -> Parser:
        setattr(parse, _KIND, name)
        return parse

    return mark


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where one setting comes from. `spelling` is "" for one that has no flag, `variable` likewise."""

    spelling: str
    variable: str
    default: str | None
    parse: Callable[[str], Any]
    help: str
    short: str = ""
    group: Group = Group.OTHER
    repeated: bool = False

    @property
    def destination(self) -> str:
        return self.spelling.removeprefix("--").replace("-", "_")


def flag(
    default: str | None,
    *,
    parse: Callable[[str], T],
    help: str,  # noqa: A002
    env: str = "",
    short: str = "",
    group: Group = Group.OTHER,
) -> T:
    """A setting with a flag, and with `env` also a variable. `default` None: one of them must be given. `short` is
    another spelling of the flag, such as "-o".

    Typed as the value it will hold, so that the field can be annotated with that.
    """
    origin = _Origin(spelling="--", short=short, variable=env, default=default, parse=parse, help=help, group=group)
    return cast(T, _field(origin))


def repeated_flag(
    *default: str,
    parse: Callable[[str], T],
    help: str,  # noqa: A002
    short: str = "",
    group: Group = Group.OTHER,
) -> tuple[T, ...]:
    """A setting with a flag that may be given several times; its values, in their order, replace `default`."""
    origin = _Origin(
        spelling="--",
        short=short,
        variable="",
        default=", ".join(default),
        parse=parse,
        help=help,
        group=group,
        repeated=True,
    )
    return dataclasses.field(default=tuple(map(parse, default)), metadata={_METADATA: origin})


def variable(name: str, *, parse: Callable[[str], T], help: str, default: str | None = None) -> T:  # noqa: A002
    """A setting that only the environment gives; None as for `flag`."""
    return cast(T, _field(_Origin(spelling="", variable=name, default=default, parse=parse, help=help)))


def _field(origin: _Origin) -> Any:
    metadata = {_METADATA: origin}
    if origin.default is None:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=origin.parse(origin.default), metadata=metadata)


@dataclass(frozen=True, slots=True)
class Configured:
    """A setting's text from a configuration file, and what to call its place in messages."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class FormerFlag:
    """A flag that a program of others has, and this one has not. `read` gives the texts of the settings that it stands
    for, by field; none where it has no meaning here. It raises ValueError as parsers do.
    """

    spelling: str
    read: Callable[[str], Mapping[str, str]]
    boolean: bool = False


def parse_settings(
    settings: type[T],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    program: str,
    about: str,
    configured: Mapping[str, Configured] = MappingProxyType({}),
    former: Sequence[FormerFlag] = (),
) -> T:
    """The settings that `arguments` (without the program's name), `environment` and `configured` ask for.

    `configured` is by the names of the fields. `former` are accepted in place of the settings that they stand for, an
    earlier one in place of a later one; those without a meaning are named on standard error. As argparse does: `--help`
    and `--version` print and exit with 0, a mistake prints its reason and exits with 2.
    """
    origins = dict(_origins(settings))
    parser = _parser(origins.values(), program=program, about=about)
    _add_former(former, parser)
    given = vars(parser.parse_args(arguments))
    replaced = _read_former(former, given, parser)
    values: dict[str, Any] = {}
    for name, origin in origins.items():
        text, source = given.get(origin.destination), origin.spelling
        if text is None and name in replaced:
            text, source = replaced[name].text, replaced[name].origin
        if text is None and origin.variable and origin.variable in environment:
            text, source = environment[origin.variable], origin.variable
        if text is None and name in configured:
            text, source = configured[name].text, configured[name].origin
        if text is None:
            if origin.default is None:
                parser.error(f"{' or '.join(filter(None, (origin.spelling, origin.variable)))} must be set")
            continue
        parsed = []
        for each in text if origin.repeated else [text]:
            try:
                parsed.append(origin.parse(each))
            except ValueError as expected:
                parser.error(f'{source}: "{each}" is not {expected}')
        values[name] = tuple(parsed) if origin.repeated else parsed[0]
    try:
        return settings(**values)
    except ValueError as refusal:
        # Each is right, but not together: the dataclass's own `__post_init__` says so in a sentence.
        parser.error(str(refusal))


def _origins(settings: type[Any]) -> list[tuple[str, _Origin]]:
    found = []
    for field in dataclasses.fields(settings):
        origin = cast(_Origin, field.metadata[_METADATA])
        if origin.spelling:
            origin = dataclasses.replace(origin, spelling="--" + field.name.replace("_", "-"))
        found.append((field.name, origin))
    return found


def _parser(origins: Collection[_Origin], *, program: str, about: str) -> argparse.ArgumentParser:
    variables = [origin for origin in origins if not origin.spelling]
    parser = argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog=_environment_help(variables),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="show the version and exit")
    flags = sorted(
        (origin for origin in origins if origin.spelling), key=lambda origin: list(Group).index(origin.group)
    )
    headings = {group: parser.add_argument_group(group) for group in dict.fromkeys(origin.group for origin in flags)}
    for origin in flags:
        heading = headings[origin.group]
        note = f" (default {origin.default})" if origin.default else ""
        if origin.variable:
            note += f" [{origin.variable}]"
        text = (origin.help + note).replace("%", "%%")
        spellings = [*filter(None, (origin.short,)), origin.spelling]
        if origin.parse is parse_boolean:
            heading.add_argument(*spellings, nargs="?", const="true", metavar=_kind(origin), help=text)
        else:
            action = "append" if origin.repeated else "store"
            heading.add_argument(*spellings, action=action, metavar=_kind(origin), help=text)
    return parser


class _PrintVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        from importlib.metadata import version  # here, as it takes longer to import than all else of this module

        sys.stdout.write(f"{parser.prog} {version('coil')}\n")
        parser.exit()


def _add_former(former: Collection[FormerFlag], parser: argparse.ArgumentParser) -> None:
    for flag_ in former:
        if flag_.boolean:
            parser.add_argument(flag_.spelling, dest=flag_.spelling, nargs="?", const="true", help=argparse.SUPPRESS)
        else:
            parser.add_argument(flag_.spelling, dest=flag_.spelling, help=argparse.SUPPRESS)


def _read_former(
    former: Collection[FormerFlag], given: Mapping[str, str | None], parser: argparse.ArgumentParser
) -> dict[str, Configured]:
    """What the flags of others that are given stand for, by field."""
    found: dict[str, Configured] = {}
    ignored: list[str] = []
    for flag_ in former:
        text = given[flag_.spelling]
        if text is None:
            continue
        try:
            texts = flag_.read(text)
        except ValueError as expected:
            parser.error(f'{flag_.spelling}: "{text}" is not {expected}')
        if not texts:
            ignored.append(flag_.spelling)
        for name, text_here in texts.items():
            found.setdefault(name, Configured(text_here, flag_.spelling))
    if ignored:
        sys.stderr.write(f"{parser.prog}: ignored, without a meaning here: {', '.join(ignored)}\n")
    return found


def _kind(origin: _Origin) -> str:
    name: str = getattr(origin.parse, _KIND, "VALUE")
    return name


def _environment_help(origins: Sequence[_Origin]) -> str:
    if not origins:
        return ""
    width = max(len(origin.variable) for origin in origins)
    lines = [
        f"  {origin.variable:{width}}  {origin.help}" + (f" (default {origin.default})" if origin.default else "")
        for origin in origins
    ]
    return "\n".join(["environment:", *lines])


@kind("true|false")
def parse_boolean(text: str) -> bool:
    """As pflag reads it: true, 1, t, false, 0, f in any case."""
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError("true or false") from None


def parse_integer(minimum: int, maximum: int) -> Callable[[str], int]:
    """A parser for whole numbers in decimal from `minimum` to `maximum`, both included."""

    @kind("N")
    def number(text: str) -> int:
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and minimum <= int(text) <= maximum:
            return int(text)
        raise ValueError(f"a whole number from {minimum} to {maximum}")

    return number


def parse_optional_integer(maximum: int) -> Callable[[str], int | None]:
    """A parser for whole numbers from 0 to `maximum`; None for nothing."""
    parse = parse_integer(0, maximum)

    @kind("N")
    def number(text: str) -> int | None:
        return parse(text) if text else None

    return number


@kind("TEXT")
def parse_text(text: str) -> str:
    """Any text but an empty one."""
    if not text:
        raise ValueError("a text of at least one character")
    return text


@kind("TEXT")
def parse_optional_text(text: str) -> str:
    """Any text; empty means none."""
    return text


@kind("URL")
def parse_optional_url(text: str) -> str | None:
    """A URL of http or https; empty means none."""
    if text and not text.startswith(("http://", "https://")):
        raise ValueError("a URL of http or https")
    return text or None


@kind("PATH")
def parse_path(text: str) -> Path:
    """The path of a file or folder, which need not exist yet."""
    return Path(parse_text(text))


@kind("CIDR[,CIDR...]")
def parse_networks(text: str) -> tuple[IPNetwork, ...]:
    """Networks between commas; empty means none. An address within a network stands for the network."""
    try:
        return tuple(ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError('networks between commas, such as "10.96.0.0/12,fd00:96::/112"') from None


@kind("REGEX[,REGEX...]")
def parse_patterns(text: str) -> tuple[re.Pattern[str], ...]:
    """Regular expressions between commas; empty means none."""
    try:
        return tuple(re.compile(part.strip()) for part in text.split(",") if part.strip())
    except re.error as error:
        raise ValueError(f"regular expressions between commas, such as ^cali,^br-: {error}") from None


@kind("PATH")
def parse_optional_path(text: str) -> Path | None:
    """A path; empty means none."""
    return Path(text) if text else None


def parse_word(*words: str) -> Callable[[str], str]:
    """A parser that accepts exactly `words`."""

    @kind("|".join(words))
    def word(text: str) -> str:
        if text in words:
            return text
        raise ValueError("one of " + ", ".join(words))

    return word


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)


@kind("DURATION")
def parse_duration(text: str) -> float:
    """Seconds, never negative. Raises ValueError saying what is expected.

    The grammar is that of Go's time.ParseDuration without a sign: every number has a unit, except "0".
    """
    if text == "0":
        return 0.0
    total, position = 0.0, 0
    while part := _PART.match(text, position):
        total += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    if position == 0 or position != len(text):
        raise ValueError('a length of time such as "500ms", "30s", "5m" or "1h30m"')
    return total


@kind("PERIOD")
def parse_period(text: str) -> float:
    """`parse_duration`, but longer than nothing: for what is repeated or waited for."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError('a length of time above zero, such as "30s" or "5m"')
    return seconds


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP address to bind to. `host` is an address or a name, and empty for every address; port 0 lets the kernel
    choose.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@kind("HOST:PORT")
def parse_endpoint(text: str) -> Endpoint:
    """`[host]:port`; without a host, every address, as Go's programs have it: the defaults name the loopback address.

    Raises ValueError saying what is expected.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise ValueError('an address such as ":9386" or "0.0.0.0:9386"')
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535):
        raise ValueError('a port from 0 to 65535 after the last ":"')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if _version(host) != 6:
            raise ValueError("an IPv6 address between the brackets")
    elif ":" in host:
        raise ValueError('an IPv6 address in brackets, such as "[::1]:9386"')
    elif any(not (c.isalnum() or c in "-.") for c in host):
        raise ValueError("an address or a host name before the port")
    return Endpoint(host, int(port_text))


@kind("HOST:PORT|off")
def parse_optional_endpoint(text: str) -> Endpoint | None:
    """`[host]:port`, or None for `off` and for nothing. Raises ValueError."""
    if text in ("", "off"):
        return None
    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise ValueError(f'"off" or {error}') from None


def _version(host: str) -> int | None:
    try:
        return ip_address(host).version
    except ValueError:
        return None
