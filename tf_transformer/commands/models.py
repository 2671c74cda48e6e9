"""How commands load models: without TensorFlow's start-up notes, from a run or a SavedModel."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any


def open_translator(path: str, *, xla: bool = False, threads: int | None = None) -> Any:
    """The `Translator` in a run directory (its best checkpoint) or in a SavedModel."""
    with quiet():
        from tf_transformer.inference.translator import Translator, run_in_callers_thread
        from tf_transformer.runs.restore import restore_model, translator_of
        from tf_transformer.runs.run_directory import RunDirectory
    run_in_callers_thread()
    if not RunDirectory.is_run(path):
        return Translator.load(path, xla=xla, threads=threads)
    run = RunDirectory.open(path)
    model, *tokenizers, _ = restore_model(run)
    return translator_of(run.config().data, model, *tokenizers, xla=xla, threads=threads)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides TensorFlow's start-up notes on CPUs and CUDA, which C++ writes.

    What was written is shown after all if something fails.
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
