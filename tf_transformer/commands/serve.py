"""Serve a SavedModel by HTTP: TensorFlow Serving's REST API, and a page to try it.

Serve the highest version of a SavedModel with TensorFlow Serving's REST API, a page and /healthz.
After SIGTERM or Ctrl-C, the server answers the open requests and ends; the second Ctrl-C ends it at
once.

tf-transformer serve saved_models/de_en
"""

import contextlib
import os
import signal
import sys
from typing import Annotated, Any

from pydantic import Field

from tf_transformer.commands.options import Checked, argument, group, option
from tf_transformer.errors import InputError
from tf_transformer.machine import prepare_server, quiet
from tf_transformer.runs.run_directory import warn
from tf_transformer.serving.limits import Limits


class Options(Checked):
    """The options of `serve`."""

    saved_model: str = argument("SAVED_MODEL", "such as saved_models/NAME")
    port: Annotated[int, Field(ge=0, le=65535)] = option(8501, "port; 0 is any free one")
    host: str = option("127.0.0.1", "where to listen; 0.0.0.0 lets other machines in", "ADDRESS")
    limits: Limits = group(Limits)


def run(options: Options) -> int:
    """Serve a SavedModel until a signal ends the process."""
    prepare_server()
    with quiet():
        try:
            from tf_transformer.serving.server import LocalServer
        except ModuleNotFoundError as error:
            raise InputError(
                f"the server needs the package {error.name}. "
                f"Install what it needs: pip install starlette uvicorn orjson"
            ) from None
    server = LocalServer(options.saved_model, options.host, options.port, limits=options.limits)
    status = 0
    if sys.stderr.isatty():
        warn(f"{options.saved_model}: loading and warming up, which may take a minute.")
    try:
        with server, contextlib.suppress(KeyboardInterrupt):
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, _stop)
            print(f"{server.version.name}, version {server.version.number}: {server.address}/")
            print(f"""curl -d '{{"instances": ["YOUR TEXT"]}}' {server.url}:predict""")
            print("Ctrl-C ends it.", flush=True)
            server.wait()
    except KeyboardInterrupt:  # while the model loads, or for a second time
        warn("interrupted.")
        status = 130
    sys.stderr.flush()
    # A batch that still runs must not delay or crash the end.
    os._exit(status)


def _stop(number: int, frame: Any) -> None:
    """End the server after its answers, which another Ctrl-C may cut off, but no SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt
