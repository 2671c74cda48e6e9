"""Loading models from runs and SavedModels, without TensorFlow's start-up messages."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any


def open_translator(path: str, threads: int | None = None) -> Any:
    """Load a `Translator` from a SavedModel or from the best checkpoint of a run directory."""
    with quiet():
        from tf_transformer.inference.translator import Translator, run_in_callers_thread
        from tf_transformer.runs.restore import restore_model, translator_of
        from tf_transformer.runs.run_directory import RunDirectory
    run_in_callers_thread()
    if not RunDirectory.is_run(path):
        return Translator.load(path, threads=threads)
    run = RunDirectory.open(path)
    model, *tokenizers, _ = restore_model(run)
    return translator_of(run.config().data, model, *tokenizers, threads=threads)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the start-up messages about CPUs and CUDA that TensorFlow's C++ code writes.

    Everything written to stderr in the `with` block is hidden, and shown only if an exception is
    raised.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        except Exception:
            notes.seek(0)
            os.write(screen, notes.read())
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)
