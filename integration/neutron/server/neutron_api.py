"""Serves Neutron's API on sqlite, without a broker and without agents.

    python neutron_api.py CONFIGURATION ADDRESS PORT

Run by the interpreter of `integration.neutron.environment`, with this folder on its path. Beside Neutron's own paths it
has one more, in place of an agent's messages: `POST /test/ports/<id>/<status>` tells Neutron that the port's interface
is plugged in (ACTIVE), or is not any more (DOWN).
"""

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

_STATUS_PATH = "/test/ports/"


def main() -> None:
    configuration, address, port = sys.argv[1:]
    os.environ["OS_NEUTRON_CONFIG_FILES"] = configuration
    # Neutron parses it, too.
    sys.argv = ["neutron-api"]
    _create_schema(configuration)
    from neutron.wsgi import api
    from serving import serve

    serve(with_statuses(api.application), int(port), address=address)


def _create_schema(configuration: str) -> None:
    """From the models: Neutron's migrations do not run on sqlite."""
    import configparser

    import sqlalchemy
    from neutron.db.migration.models import head
    from neutron_lib.db import model_base

    parser = configparser.ConfigParser(interpolation=None)
    parser.read(configuration)
    engine = sqlalchemy.create_engine(parser["database"]["connection"])
    assert head is not None  # its import is what makes the models known
    model_base.BASEV2.metadata.create_all(engine)
    engine.dispose()


def with_statuses(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The application, with the path for ports' statuses in front."""

    def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if not path.startswith(_STATUS_PATH):
            return application(environ, start_response)
        port, _, status = path.removeprefix(_STATUS_PATH).partition("/")
        _set_status(port, status)
        start_response("204 No Content", [])
        return []

    return call


def _set_status(port: str, status: str) -> None:
    from neutron_lib import context
    from neutron_lib.plugins import directory

    directory.get_plugin().update_port_status(context.get_admin_context(), port, status)


if __name__ == "__main__":
    main()
