"""What a new run needs of its directory. No TensorFlow, so that a refusal comes at once."""

import os
import pathlib

from tf_transformer.config import InputError

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"


class RunError(InputError):
    """A run directory that cannot be used."""


def require_new(path):
    """Refuses what cannot become the directory of a new run; makes nothing.

    Raises:
        RunError: it holds a run already, or cannot be made.
    """
    path = pathlib.Path(path)
    if (path / CONFIG).exists() or (path / CHECKPOINTS).exists():
        raise RunError(
            f"{path}: holds a run already. Continue it with --resume, or give another --run-dir."
        )
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise RunError(f"{path}: cannot be made, since {existing} is no writable folder.")
