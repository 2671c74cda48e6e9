"""`tf-transformer serve`: a local server with TensorFlow Serving's REST API, and a page."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from tf_transformer.commands.models import quiet
from tf_transformer.commands.options import positive
from tf_transformer.serving.server.limits import Limits
from tf_transformer.settings import flag, settings_of

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
    for field in settings_of(Limits):
        limits.add_argument(
            flag(field.name),
            type=positive if field.type is int else float,
            default=field.default,
            metavar="N" if field.type is int else "S",
            help=f"{field.metadata['help']} (default: {field.default})",
        )


def run(options: argparse.Namespace, started: float) -> int:
    """Serves."""
    limits = Limits(**{field.name: getattr(options, field.name) for field in settings_of(Limits)})
    with quiet():
        from tf_transformer.serving.server.local_server import LocalServer
    server = LocalServer(
        options.saved_model,
        options.host,
        options.port,
        limits=limits,
        threads=options.threads,
        batching=options.batching,
        unverified=options.unverified,
    )

    def announce() -> None:
        name, version = server.versions.name, server.versions.current.number
        print(f"{name}, version {version}: {server.address}/")
        print(f"""curl -d '{{"instances": ["YOUR TEXT"]}}' {server.url}:predict""")
        print("Ctrl-C ends it.", flush=True)

    with _log():
        if server.run(announce):
            return 0
    print("tf-transformer: some requests were not answered in time.", file=sys.stderr, flush=True)
    # Threads that still run a batch would crash in what Python takes down.
    os._exit(1)


@contextlib.contextmanager
def _log() -> Iterator[None]:
    """Writes to stderr what happens to the versions, and nothing of what TensorFlow says."""
    logger, tensorflow = logging.getLogger("tf_transformer"), logging.getLogger("tensorflow")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("tf-transformer: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    tensorflow.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 65535, not {text!r}")
    return int(text)
