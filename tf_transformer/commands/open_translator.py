"""Opening the model that a command names: a run or a SavedModel."""

from collections.abc import Mapping
from typing import Any

from tf_transformer.machine import quiet, run_in_callers_thread


def open_translator(path: str, threads: int | None, terms: Mapping[str, str] | None = None) -> Any:
    """Load a `Translator` from a SavedModel or from the best checkpoint of a run directory."""
    with quiet():
        from tf_transformer.inference.translator import Translator
        from tf_transformer.runs.restore import restore_model, translator_of
        from tf_transformer.runs.run_directory import RunDirectory
    run_in_callers_thread()
    if not RunDirectory.is_run(path):
        return Translator.load(path, threads=threads, terms=terms)
    run = RunDirectory.open(path)
    model, *tokenizers, _ = restore_model(run)
    return translator_of(run.config().data, model, *tokenizers, threads=threads, terms=terms)
