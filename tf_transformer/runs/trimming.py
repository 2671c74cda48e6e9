"""Trimming the vocabularies of a run to the subwords that some texts and translations need."""

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.data.lines import DataError
from tf_transformer.data.pieces import PIECES
from tf_transformer.files import atomic_folder
from tf_transformer.inference.sentences import parts_of
from tf_transformer.models.architectures import with_tokenizers
from tf_transformer.models.base import SequenceModel
from tf_transformer.models.model_configs import ModelConfig
from tf_transformer.runs.checkpoints import Checkpoints, tokenizer_metadata
from tf_transformer.runs.restore import restore_model, search_of, translator_of
from tf_transformer.runs.run_directory import RunDirectory, RunError, say
from tf_transformer.tokenizers import subset

TRIMMED, IMPORTED = "trimmed", "imported"  # keys of the run metadata


def trim_run(
    run: RunDirectory,
    path: str | os.PathLike[str],
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    beam_size: int = 1,
    length_penalty: float | None = None,
    batch_size: int = 64,
    **options: Any,
) -> list[str]:
    """Write a new run with the best checkpoint of `run` and fewer subwords.

    The new run keeps the subwords of `sources` and `targets`, the subwords of all hypotheses for
    the sources, and the subwords that `subset_tokenizer` always keeps. The texts are therefore
    split as before. Greedy search finds the same translations, because all of their tokens are kept
    (unless two logits are equal up to rounding). Beam search may find other translations, because
    the probabilities are normalized over fewer tokens.

    Args:
        run: The run directory.
        path: The new run directory.
        sources: Texts to translate.
        targets: Texts in the target language. Their subwords are kept too.
        beam_size: Number of hypotheses for each sentence. The subwords of all hypotheses are kept;
            1 is greedy search.
        length_penalty: Length penalty of beam search.
        batch_size: Number of sentences in a batch.
        **options: `xla` and `threads`; see `Translator`.

    Returns:
        The lines of a report. The report gives the number of subwords in each vocabulary and of
        parameters, after and before trimming, and the number of translations that changed.
    """
    if os.path.lexists(path):
        raise RunError(f"{path}: exists already. Give the path of a new folder.")
    RunDirectory.create(path)
    if not any(map(str.strip, sources)):
        raise DataError("the sources have no text; give at least one line that is not blank")
    data = run.config().data
    # The translator searches these parts separately: sentences, or whole lines.
    by_sentence = search_of(data).by_sentence
    layouts = parts_of(sources, by_sentence, data.mark_pattern or PIECES)
    sources = [part for parts in layouts for part, _ in parts]
    texts = (sources, targets)
    model, *tokenizers, checkpoint = restore_model(run)

    def translate(model: SequenceModel, tokenizers: Sequence[Any]) -> list[str]:
        translator = translator_of(data, model, *tokenizers, **options)
        search = beam_size, batch_size, beam_size, length_penalty
        found = translator.stream(sources, *search, by_sentence=False)
        size = tokenizers[1].vocab_size
        say(f"Translating {len(sources):,} sentences with {size:,} target subwords.")
        return [best.text for best, *_ in found]

    recorders = [subset.Recorder(tokenizer) for tokenizer in tokenizers]
    before = translate(model, recorders)
    used = [
        recorder.recorded | subset.used_ids(tokenizer, lines)
        for recorder, tokenizer, lines in zip(recorders, tokenizers, texts, strict=True)
    ]
    smaller, trimmed = trim_to(model, tokenizers, used, texts)
    after = translate(smaller, trimmed)
    with atomic_folder(Path(path)) as folder:
        new = RunDirectory(folder)
        if run.test_path.is_dir():
            shutil.copytree(run.test_path, new.test_path)
        metadata = {**smaller.config.to_dict(), **tokenizer_metadata(*trimmed)}
        metadata[TRIMMED] = f"from {run.path}, {checkpoint.path.name}"
        metadata = {**checkpoint.run_metadata, **metadata}
        # Without the metrics of the checkpoint, which belong to the untrimmed model.
        checkpoints = Checkpoints(new.checkpoints_path)
        checkpoints.write(smaller, checkpoint.step, {}, run_metadata=metadata)
        new.begin(run.config(), trimmed, summary=run.summary())
    is_joint = _is_joint(model, tokenizers)
    sides = ("subwords",) if is_joint else ("source subwords", "target subwords")
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    pairs = zip(sides, trimmed, tokenizers, strict=False)  # a joint vocabulary has one row
    return [
        *(f"{new.vocab_size:,} of {old.vocab_size:,} {side}" for side, new, old in pairs),
        f"{smaller.count_params():,} of {model.count_params():,} parameters",
        f"{changed or 'none'} of {len(sources):,} translations changed",
    ]


def trim_to(
    model: SequenceModel,
    tokenizers: Sequence[Any],
    used: Sequence[set[int]],
    texts: Sequence[Sequence[str]],
) -> tuple[SequenceModel, Sequence[Any]]:
    """Return a model and its tokenizers with the used ids of each side and what these need.

    `texts` are texts of each side, which must be split as before.
    """
    if _is_joint(model, tokenizers):
        used = [used[0] | used[1]] * 2
        if tokenizers[0].model != tokenizers[1].model:
            # The splitters of one vocabulary may have different symbols, which all stay.
            kept = [subset.subset_tokenizer(t, used[0])[1].tolist() for t in tokenizers]
            used = [{*kept[0], *kept[1]}] * 2
    trimmed, ids = zip(*map(subset.subset_tokenizer, tokenizers, used), strict=True)
    if trimmed[0].pad_id != trimmed[1].pad_id:
        # Two tables that end with padding need the same size: more subwords stay in the smaller.
        missing = [max(map(len, ids)) - len(each) for each in ids]
        others = [np.setdiff1d(range(t.pad_id), i) for t, i in zip(tokenizers, ids, strict=True)]
        used = [{*i, *o[:n]} for i, o, n in zip(ids, others, missing, strict=True)]
        trimmed, ids = zip(*map(subset.subset_tokenizer, tokenizers, used), strict=True)
    for arguments in zip(tokenizers, trimmed, ids, texts, strict=True):
        subset.require_same_splits(*arguments)
    return trim_model(model, with_tokenizers(model.config, *trimmed), *ids), trimmed


def _is_joint(model: SequenceModel, tokenizers: Sequence[Any]) -> bool:
    # The tokenizers of an imported model may split differently, and share one vocabulary.
    return model.config.tie_embeddings or tokenizers[0].model == tokenizers[1].model


def trim_model(
    model: SequenceModel, config: ModelConfig, source_ids: Sequence[int], target_ids: Sequence[int]
) -> SequenceModel:
    """Return a copy of a model with smaller vocabularies.

    The logits of the kept tokens stay the same, up to rounding. The function works with any
    architecture: it builds a second model with other vocabulary sizes, and the axes whose sizes
    differ between the two models are vocabulary axes.

    Args:
        model: The model.
        config: The configuration of the model with the smaller vocabulary sizes and the new
            `pad_id`.
        source_ids: The source ids to keep, in the order of their new ids.
        target_ids: The target ids to keep, in the order of their new ids. With a joint vocabulary
            they equal `source_ids`.
    """
    sizes = model.config.source_vocab_size, model.config.target_vocab_size
    is_joint = sizes[0] == sizes[1] and np.array_equal(source_ids, target_ids)
    # Only axes whose size changes between the two models are treated as vocabulary axes.
    source_size = max(sizes) + 1
    target_size = source_size if is_joint else source_size + 1
    ids_of = {source_size: source_ids, target_size: target_ids}
    other = dataclasses.replace(
        model.config, source_vocab_size=source_size, target_vocab_size=target_size
    )
    other_shapes = [variable.shape for variable in type(model)(other).variables]
    trimmed = type(model)(config, dtype=model.dtype_policy)
    rows = zip(trimmed.variables, model.variables, other_shapes, strict=True)
    for variable, old, other_shape in rows:
        value = old.numpy()
        for axis, (size, other_size) in enumerate(zip(old.shape, other_shape, strict=True)):
            if size != other_size and other_size in ids_of:
                value = np.take(value, ids_of[other_size], axis)
        variable.assign(value)
    return trimmed


def require_trained(run: RunDirectory) -> None:
    """Raise a `RunError` if the run was trimmed or imported, and so has no optimizer."""
    latest = Checkpoints(run.checkpoints_path).latest()
    if latest is not None and TRIMMED in latest.run_metadata:
        raise RunError(
            f"{run.path}: was written by trim and cannot be resumed. Resume the run that was "
            f"trimmed, and trim it again."
        )
    if latest is not None and IMPORTED in latest.run_metadata:
        raise RunError(f"{run.path}: was written by import and cannot be resumed.")
