"""A run whose vocabularies are trimmed to what given texts and their translations need."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tf_transformer.data.text import DataError
from tf_transformer.files import atomic_folder
from tf_transformer.inference.translator import Translator
from tf_transformer.models.architectures import with_tokenizers
from tf_transformer.models.trimming import trim_model
from tf_transformer.runs.checkpoints import Checkpoint, Checkpoints, tokenizer_metadata
from tf_transformer.runs.restore import restore_model, translator_of
from tf_transformer.runs.run_directory import RunDirectory, RunError
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.tokenizers.trimming import (
    Recorder,
    require_same_splits,
    trim_tokenizer,
    used_ids,
)

_TRIMMED = "trimmed"  # a key of the run metadata


def trim_run(
    run: RunDirectory,
    path: str | os.PathLike[str],
    sources: Sequence[str],
    targets: Sequence[str],
    translate: Callable[[Translator, Sequence[str]], list[str]],
    **options: Any,
) -> dict[str, tuple[int, int]]:
    """Writes a run with the best checkpoint of another one, and fewer subwords.

    It keeps the subwords of the texts, all that the model generates when `translate` translates the
    sources, and what `trim_tokenizer` keeps. So texts are split as before, and greedy search, whose
    every token is kept, finds the same translations (unless two logits are equal up to rounding). A
    beam may choose another hypothesis, because each has lost the probability of dropped tokens.

    Args:
        run: The run directory.
        path: The new run directory.
        sources: Texts to translate.
        targets: Texts of the target whose subwords are kept, too.
        translate: Translates sources, with all hypotheses whose subwords are to be kept.
        **options: `xla` and `threads`, see `Translator`.

    Returns:
        Numbers after and before by what they count: subwords of each vocabulary, parameters, and
        bytes of weights and tokenizers; and the changed translations beside all.

    Raises:
        RunError: There is something at `path`, or there is no checkpoint.
        CheckpointError: No checkpoint can be read.
        DataError: The sources have no text.
        TokenizerError: A text would be split another way.
    """
    if os.path.lexists(path):
        raise RunError(f"{path}: exists already. Give a folder that is to be made.")
    RunDirectory.create(path)
    if not any(map(str.strip, sources)):
        raise DataError("the sources have no text; give at least a line that is not blank")
    config = run.config()
    model, *tokenizers, checkpoint = restore_model(run)
    texts = (sources, targets)
    joint = tokenizers[0].model == tokenizers[1].model

    def translations(model: Any, tokenizers: Sequence[Any]) -> list[str]:
        return translate(translator_of(config.data, model, *tokenizers, **options), sources)

    recorders = [Recorder(tokenizer) for tokenizer in tokenizers]
    before = translations(model, recorders)
    used = [
        recorder.marked() | used_ids(tokenizer, lines)
        for recorder, tokenizer, lines in zip(recorders, tokenizers, texts, strict=True)
    ]
    if joint:
        used = [used[0] | used[1]] * 2
    trimmed, ids = zip(*map(trim_tokenizer, tokenizers, used), strict=True)
    for arguments in zip(tokenizers, trimmed, ids, texts, strict=True):
        require_same_splits(*arguments)
    smaller = trim_model(model, with_tokenizers(model.config, *trimmed), *ids)
    after = translations(smaller, trimmed)
    with atomic_folder(Path(path)) as folder:
        _write(RunDirectory(folder), run, smaller, trimmed, checkpoint)
    sides = ("subwords",) if joint else ("source subwords", "target subwords")
    pairs = zip(sides, trimmed, tokenizers, strict=False)
    return {
        **{side: (few.vocab_size, many.vocab_size) for side, few, many in pairs},
        "parameters": (smaller.count_params(), model.count_params()),
        "bytes": (_num_bytes(smaller, trimmed), _num_bytes(model, tokenizers)),
        "translations": (
            sum(old != new for old, new in zip(before, after, strict=True)),
            len(sources),
        ),
    }


def require_untrimmed(run: RunDirectory) -> None:
    """Raises a `RunError` for a run that `trim_run` wrote, which has no optimizer."""
    latest = Checkpoints(run.checkpoints_path).latest()
    if latest is not None and _TRIMMED in latest.run_metadata:
        raise RunError(
            f"{run.path}: was written by trim and cannot be resumed. Resume the run that was "
            f"trimmed, and trim it again."
        )


def _num_bytes(model: Any, tokenizers: Sequence[SentencePieceTokenizer]) -> int:
    weights = sum(variable.numpy().nbytes for variable in model.weights)
    return weights + sum(len(tokenizer.model) for tokenizer in tokenizers)


def _write(
    new: RunDirectory,
    run: RunDirectory,
    model: Any,
    tokenizers: Sequence[SentencePieceTokenizer],
    checkpoint: Checkpoint,
) -> None:
    if (run.path / "test").is_dir():
        shutil.copytree(run.path / "test", new.path / "test")
    Checkpoints(new.checkpoints_path).write(
        model,
        checkpoint.step,
        {},  # the metrics were measured before
        batches_seen=checkpoint.batches_seen,
        run_metadata={
            **checkpoint.run_metadata,
            **model.config.to_dict(),
            **tokenizer_metadata(*tokenizers),
            _TRIMMED: f"from {run.path}, {checkpoint.path.name}",
        },
        seconds=checkpoint.seconds,
    )
    new.begin(run.config(), *tokenizers)
