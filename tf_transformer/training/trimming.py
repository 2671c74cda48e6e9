"""A run whose vocabularies are trimmed to what given texts and their translations need."""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tf_transformer.data.text import DataError
from tf_transformer.files import atomic_folder
from tf_transformer.inference.translator import Translator
from tf_transformer.models.architectures import with_tokenizers
from tf_transformer.models.trimming import trim_model
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.tokenizers.trimming import (
    Recorder,
    require_same_splits,
    trim_tokenizer,
    used_ids,
)
from tf_transformer.training.checkpoints import Checkpoint, Checkpoints
from tf_transformer.training.restore import restore_model, translator_of
from tf_transformer.training.run_directory import RunDirectory, RunError

_TRIMMED = "trimmed"  # a key of the run metadata


class Size(NamedTuple):
    """What a model takes.

    Attributes:
        source_subwords: V of the source.
        target_subwords: V of the target.
        parameters: Weights of the model.
        num_bytes: Bytes of the weights and the tokenizers.
    """

    source_subwords: int
    target_subwords: int
    parameters: int
    num_bytes: int

    @classmethod
    def of(cls, model: Any, *tokenizers: SentencePieceTokenizer) -> "Size":
        """The size of a model and its two tokenizers."""
        weights = sum(variable.numpy().nbytes for variable in model.weights)
        return cls(
            *(tokenizer.vocab_size for tokenizer in tokenizers),
            model.count_params(),
            weights + sum(len(tokenizer.model) for tokenizer in tokenizers),
        )


class Trimmed(NamedTuple):
    """What trimming did.

    Attributes:
        joint: Whether the vocabulary is joint.
        before: The size before.
        after: The size after.
        num_changed: How many of the sources are translated otherwise.
    """

    joint: bool
    before: Size
    after: Size
    num_changed: int


def trim_run(
    run: RunDirectory,
    path: str | os.PathLike[str],
    sources: Sequence[str],
    targets: Sequence[str],
    translate: Callable[[Translator, Sequence[str]], list[str]],
    *,
    xla: bool = False,
    threads: int | None = None,
) -> Trimmed:
    """Writes a run with the best checkpoint of another one, and fewer subwords.

    Kept are the subwords of the texts, and all that the model makes when `translate` translates
    the sources, beside what `trim_tokenizer` keeps. So texts are read as before, and greedy search,
    whose every token is kept, finds the same (but for two logits that are equal up to rounding). A
    beam compares hypotheses by probabilities, and each hypothesis has lost the probability of other
    tokens, so that it may choose another one; `num_changed` counts.

    Args:
        run: The run directory.
        path: The new run directory.
        sources: Texts to translate.
        targets: Texts of the target, of which the subwords are kept too.
        translate: Translates sources, with all hypotheses whose subwords are to be kept.
        xla: As in `Translator`.
        threads: As in `Translator`.

    Raises:
        RunError: There is something at `path`, or there is no checkpoint.
        CheckpointError: None can be read.
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
        options = {"xla": xla, "threads": threads}
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
    sizes = Size.of(model, *tokenizers), Size.of(smaller, *trimmed)
    with atomic_folder(Path(path)) as folder:
        _write(RunDirectory(folder), run, smaller, trimmed, checkpoint)
    num_changed = sum(old != new for old, new in zip(before, after, strict=True))
    return Trimmed(joint, *sizes, num_changed)


def require_untrimmed(run: RunDirectory) -> None:
    """Raises a `RunError` for a run that `trim_run` wrote, which has no optimizer."""
    latest = Checkpoints(run.checkpoints_path).latest()
    if latest is not None and _TRIMMED in latest.run_metadata:
        raise RunError(
            f"{run.path}: was written by trim and cannot be resumed. Resume the run that was "
            f"trimmed, and trim it again."
        )


def _write(
    new: RunDirectory,
    run: RunDirectory,
    model: Any,
    tokenizers: Sequence[SentencePieceTokenizer],
    checkpoint: Checkpoint,
) -> None:
    if (run.path / "test").is_dir():
        shutil.copytree(run.path / "test", new.path / "test")
    digests = [hashlib.sha256(tokenizer.model).hexdigest()[:16] for tokenizer in tokenizers]
    metadata = {
        **checkpoint.run_metadata,
        **model.config.to_dict(),
        "source tokenizer": f"SHA-256 {digests[0]}",
        "target tokenizer": f"SHA-256 {digests[1]}",
        _TRIMMED: f"from {run.path}, {checkpoint.path.name}",
    }
    # Without metrics, which were measured before.
    Checkpoints(new.checkpoints_path).write(
        model, checkpoint.step, {}, is_best=True, batches_seen=checkpoint.batches_seen,
        run_metadata=metadata, seconds=checkpoint.seconds,
    )  # fmt: skip
    new.begin(run.config(), *tokenizers)
