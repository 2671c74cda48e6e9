"""`tf-transformer serve`: a local server with TensorFlow Serving's REST API, and a page."""

import argparse
import dataclasses
import logging
import os
import sys

from tf_transformer.commands.models import quiet
from tf_transformer.commands.options import positive
from tf_transformer.errors import InputError
from tf_transformer.serving.limits import Limits

HELP = "serve a SavedModel by HTTP: TensorFlow Serving's REST API, and a page to try it"
DESCRIPTION = (
    "Serves the highest version of a SavedModel with TensorFlow Serving's REST API, a page, "
    "/healthz and /metrics, and takes up new versions while it runs. SIGTERM or Ctrl-C ends it "
    "when what was asked is answered (exit status 0; 1 if something was not)."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("saved_model", metavar="SAVED_MODEL", help="such as saved_models/NAME")
    parser.add_argument(
        "--port", type=_port, default=8501, metavar="N", help="0 is any (default: 8501)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen; 0.0.0.0 lets other machines in (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--allowed-hosts",
        nargs="+",
        metavar="NAME",
        help="the names by which clients may call it (default: those of this machine, or any "
        "where other machines are let in)",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="batches in parallel (default: the cores)"
    )
    parser.add_argument(
        "--no-batching",
        dest="batching",
        action="store_false",
        help="run each request alone, also when many come at once",
    )
    parser.add_argument(
        "--unverified",
        action="store_true",
        help="serve also what has no manifest to check its files by",
    )
    limits = parser.add_argument_group("limits")
    for field in dataclasses.fields(Limits):
        limits.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=positive,
            default=field.default,
            metavar="N",
            help=f"{field.metadata['help']} (default: {field.default})",
        )


def run(options: argparse.Namespace, started: float) -> int:
    """Serves."""
    limits = {field.name: getattr(options, field.name) for field in dataclasses.fields(Limits)}
    with quiet():
        try:
            from tf_transformer.serving.server import LocalServer
        except ModuleNotFoundError as error:
            raise InputError(
                f"the server needs the package {error.name}. "
                f"Install what it needs: pip install starlette uvicorn orjson"
            ) from None
    server = LocalServer(
        options.saved_model,
        options.host,
        options.port,
        limits=Limits(**limits),
        threads=options.threads,
        batching=options.batching,
        unverified=options.unverified,
        allowed_hosts=options.allowed_hosts,
    )

    def announce() -> None:
        name, version = server.versions.name, server.versions.current.number
        print(f"{name}, version {version}: {server.address}/")
        print(f"""curl -d '{{"instances": ["YOUR TEXT"]}}' {server.url}:predict""")
        print("Ctrl-C ends it.", flush=True)

    logging.basicConfig(format="tf-transformer: %(message)s")
    logging.getLogger("tf_transformer").setLevel(logging.INFO)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    answered = server.run(announce)
    if not answered:
        print("tf-transformer: some requests were not answered in time.", file=sys.stderr)
    sys.stderr.flush()
    # A version that still loads, or a batch that still runs, must not delay or crash the end.
    os._exit(0 if answered else 1)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 65535, not {text!r}")
    return int(text)
