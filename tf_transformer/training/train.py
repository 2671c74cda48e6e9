"""What `tf-transformer train` does: from a configuration to a run directory."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import time
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from tf_transformer.config import RunConfig, TrainingConfig
from tf_transformer.errors import ConfigError, InputError
from tf_transformer.evaluation import signatures
from tf_transformer.models.architectures import build_model
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training import callbacks, stopping
from tf_transformer.training.averaging import write_best_average
from tf_transformer.training.checkpoints import Checkpoint, Checkpoints
from tf_transformer.training.cluster import Cluster, WorkerError, worker_failures_named
from tf_transformer.training.compilation import compile_model, make_schedule
from tf_transformer.training.criterion import LOSS, Criterion
from tf_transformer.training.distribution import Workers, separate_seeds, strategy_for
from tf_transformer.training.limits import (
    early_stopping,
    log_before,
    reason_to_stop,
    time_limit,
)
from tf_transformer.training.optimizers import step_of
from tf_transformer.training.progress import Progress
from tf_transformer.training.restore import best_checkpoint, translator_of
from tf_transformer.training.run_data import RunData, prepare_data
from tf_transformer.training.run_directory import RunDirectory, say
from tf_transformer.training.speed import choose_by_speed, seconds_per_update
from tf_transformer.training.trimming import require_untrimmed


def train(
    config: RunConfig | None,
    run_dir: str | os.PathLike[str],
    *,
    resume: bool = False,
    started: float | None = None,
) -> int:
    """Trains a model and writes everything into its run directory.

    Where `TF_CONFIG` or Slurm names several workers, each of them calls this with the same
    arguments; the chief alone writes, and to resume, all must see its run directory.

    Args:
        config: The configuration; None is that of the run to resume.
        run_dir: The run directory.
        resume: Whether to continue the run in `run_dir` from its newest checkpoint.
        started: `time.monotonic()` from which `minutes` counts; None is now.

    Returns:
        The number of the signal that ended training early (Ctrl-C, SIGTERM), or 0.

    Raises:
        InputError: With one line that says what to do.
    """
    started = time.monotonic() if started is None else started
    run = RunDirectory.open(run_dir) if resume else RunDirectory.create(run_dir)
    require_untrimmed(run)
    config = config or run.config()
    if config.training.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs its package. Install it: pip install tensorboard")
    cluster = Cluster.from_environment()
    if cluster is None:
        workers = Workers(strategy_for(config.training.devices))
        return _train(config, run, workers, resume, started)
    cluster.wait_for_workers()
    with worker_failures_named(run.path):
        workers = Workers(strategy_for(config.training.devices, cluster))
        return _train(config, run, workers, resume, started)


def _train(
    config: RunConfig, run: RunDirectory, workers: Workers, resume: bool, started: float
) -> int:
    keras.utils.set_random_seed(config.training.seed)
    if config.training.deterministic:
        tf.config.experimental.enable_op_determinism()
    config, data = prepare_data(config, run, workers, resume)
    criterion = Criterion.of(config)
    with workers.strategy.scope():
        model = build_model(config.model, config.training.precision)
        schedule = make_schedule(config, _total_steps(config.training, data))
        compile_model(model, config.training, schedule)
    if workers.is_chief and not resume:
        _announce(config, data, model)
    metadata = _run_metadata(config, data, model)
    workers.require_same({**metadata, **dataclasses.asdict(config.training), "devices": None})
    if not resume and config.training.minutes is not None:
        config = choose_by_speed(config, workers, data.batches, model, schedule, started)
        metadata = _run_metadata(config, data, model)
    # A new run has no directory before this, so a failed start makes none.
    with run.lock() if workers.is_chief else contextlib.nullcontext():
        checkpoint = None
        if resume:
            checkpoint = _resume(config, run, workers, model, metadata)
            if workers.is_chief:
                _announce(config, data, model)
            if checkpoint is not None:
                if checkpoint.seconds < 60 * (config.training.minutes or 0):
                    # Building the graph and all else that starts it again takes none of its time.
                    seen = checkpoint.batches_seen
                    seconds_per_update(config.training, workers, data.batches, model, 3, seen)
                started = time.monotonic() - checkpoint.seconds
        elif workers.is_chief:
            run = RunDirectory.create(run.path)  # another process may have been faster
            run.begin(config, *data.tokenizers, data.corpus.test)
        separate_seeds(model)
        signed = {}
        if criterion != LOSS and workers.is_chief:
            signed = signatures(list(data.corpus.validation.targets), "val_")
            signature = signed[criterion.metric]
            say(f"Validation {criterion.label} ({signature}) chooses the best checkpoint.")
        save = callbacks.SaveCheckpoints(
            Checkpoints(run.checkpoints_path, config.training.keep_checkpoints),
            criterion,
            every=config.training.checkpoint_steps,
            batches_seen=checkpoint.batches_seen if checkpoint else 0,
            run_metadata=metadata,
            signatures=signed,
            started=started,
            writes=workers.is_chief,
        )
        is_validated = checkpoint is None or bool(checkpoint.metrics)
        signal = _fit(config, run, workers, data, model, schedule, save, started, is_validated)
        workers.all_reduce_max(0)  # no worker ends before the chief has written all
        return signal


def _announce(config: RunConfig, data: RunData, model: keras.Model) -> None:
    say(data.description)
    if "training.epochs" in config.chosen:
        say(
            f"No --minutes, --epochs or --steps is given: training for "
            f"{config.training.epochs} epochs, {_total_steps(config.training, data):,} updates."
        )
    say(f"{model.count_params():,} parameters. Building the graph of an update.")


def _total_steps(config: TrainingConfig, data: RunData) -> int | None:
    """The updates of the whole training; None where time ends it."""
    if config.epochs is None:
        return config.steps
    # The batches of one update may be of two epochs.
    return -(-config.epochs * len(data.batches) // config.accumulation_steps)


def _run_metadata(config: RunConfig, data: RunData, model: keras.Model) -> dict[str, Any]:
    """What a run that resumes must share with the one that stopped."""

    def digest(tokenizer: SentencePieceTokenizer) -> str:
        return f"SHA-256 {hashlib.sha256(tokenizer.model).hexdigest()[:16]}"

    return {
        **model.config.to_dict(),
        "optimizer": type(model.optimizer).__name__,
        "precision": config.training.precision,
        "seed": config.training.seed,
        "schedule": config.training.schedule,
        "learning_rate": config.training.learning_rate,
        "warmup_steps": config.training.warmup_steps,
        "decay_fraction": config.training.decay_fraction,
        "label_smoothing": config.training.label_smoothing,
        "accumulation_steps": config.training.accumulation_steps,
        "clip_norm": config.training.clip_norm,
        "batch_tokens": config.data.batch_tokens,
        "max_length": config.data.max_length,
        "source_noise": config.data.source_noise,
        "training corpus": str(data.corpus.train.fingerprint),
        "validation corpus": str(data.corpus.validation.fingerprint),
        "source tokenizer": digest(data.source_tokenizer),
        "target tokenizer": digest(data.target_tokenizer),
    }


def _resume(
    config: RunConfig,
    run: RunDirectory,
    workers: Workers,
    model: keras.Model,
    metadata: dict[str, Any],
) -> Checkpoint | None:
    """Restores the checkpoint that the chief continues from; None where there is none yet."""
    checkpoints = Checkpoints(run.checkpoints_path)
    checkpoint = checkpoints.latest_intact(say) if workers.is_chief else None
    name = workers.broadcast(checkpoint.path.name.encode() if checkpoint else b"").decode()
    if name and not workers.is_chief:
        checkpoint = checkpoints.named(name)
        if checkpoint is None:
            raise WorkerError(
                f"{run.checkpoints_path}: this worker does not see the chief's {name}. "
                f"Keep the run directory on a file system that all workers share."
            )
    if checkpoint is not None:
        checkpoint.require(metadata)
        checkpoint.restore(model)
        if workers.is_chief:
            checkpoints.set_aside_after(checkpoint)
    return checkpoint


def _fit(
    config: RunConfig,
    run: RunDirectory,
    workers: Workers,
    data: RunData,
    model: keras.Model,
    schedule: LearningRateSchedule,
    save: callbacks.SaveCheckpoints,
    started: float,
    is_validated: bool,
) -> int:
    """Trains until a limit or a signal; returns the number of the signal, or 0."""
    training = config.training
    batches, accumulation = data.batches, training.accumulation_steps
    total_steps = _total_steps(training, data)
    patience = early_stopping(config, run, model, workers)
    if total_steps is None:
        limit = time_limit(training, run, model, schedule, workers, started)
    else:
        limit = stopping.StepLimit(total_steps)
    done = reason_to_stop(training, model, total_steps, limit, patience)
    if done and not step_of(model):
        raise InputError(f"{run.path}: nothing is trained yet, and {done}")
    period = training.validation_steps * accumulation
    # A checkpoint is written before its validation, which may have been interrupted.
    validates_first = not is_validated and bool(done or save.batches_seen % period == 0)
    if done and not validates_first:
        say(f"Nothing to do: {done}.")
        if workers.is_chief and not run.average_path.is_dir():  # its end may have been interrupted
            write_best_average(run, data.tokenizers, data.corpus.validation, say)
        return 0
    if workers.is_chief and config.to_dict() != run.config().to_dict():
        run.save_config(config)  # resumed with another budget
    progress = Progress(
        batches.num_target_tokens / len(batches), started, total_steps, training.minutes,
        accumulation,
    )  # fmt: skip
    stop_on_signal = stopping.StopOnSignal(workers.all_reduce_max)
    in_order = [
        callbacks.StopOnNan(Checkpoints(run.checkpoints_path)),
        *(
            _callbacks_of_chief(config, run, data, model, progress, save, started)
            if workers.is_chief
            else [save]
        ),
        *([patience] if patience else []),
        limit,
        stop_on_signal,
    ]
    if workers.is_chief:
        run.truncate_log(step_of(model))
    try:
        if validates_first:
            _validate(model, data, training.chunked_logits, in_order)
        if not (validates_first and (done or model.stop_training)):
            _fit_periods(model, data, period, accumulation, training.chunked_logits, save, in_order)
    except stopping.Terminated:
        save.save()
    finally:
        stop_on_signal.restore()
        progress.close()
    if workers.is_chief and not stop_on_signal.signal:
        deadline = None if training.minutes is None else started + 60 * training.minutes
        write_best_average(run, data.tokenizers, data.corpus.validation, say, deadline)
    passes = step_of(model) * accumulation / len(batches)
    _report(config, run, workers, step_of(model), passes, stop_on_signal.signal, started)
    return stop_on_signal.signal


def _validate(
    model: keras.Model,
    data: RunData,
    labels_as_input: bool,
    in_order: list[keras.callbacks.Callback],
) -> None:
    """Makes the validation that belongs to the newest checkpoint."""
    together = keras.callbacks.CallbackList(in_order, model=model)
    dataset = data.validation.dataset(num_epochs=1, labels_as_input=labels_as_input)
    logs = model.evaluate(dataset, verbose=0, return_dict=True, callbacks=together)
    together.on_epoch_end(0, {f"val_{name}": value for name, value in logs.items()})


def _fit_periods(
    model: keras.Model,
    data: RunData,
    period: int,
    accumulation: int,
    labels_as_input: bool,
    save: callbacks.SaveCheckpoints,
    in_order: list[keras.callbacks.Callback],
) -> None:
    """Trains for periods of so many batches, each with a validation, until a callback stops it."""

    def fit(steps: int, epochs: int) -> None:
        # The order of the data is a function of the epoch, so a resumed run sees the batches that
        # the other would have seen.
        epoch, skip = divmod(save.batches_seen, len(data.batches))
        model.fit(
            data.batches.dataset(epoch, None, skip, accumulation, labels_as_input),
            validation_data=data.validation.dataset(num_epochs=1, labels_as_input=labels_as_input),
            steps_per_epoch=steps,
            shuffle=False,  # the batches are in their order already
            epochs=epochs,
            verbose=0,
            callbacks=in_order,
        )

    interrupted = save.batches_seen % period
    if interrupted:  # first the rest of the period in which the run was stopped
        fit(period - interrupted, epochs=1)
    if not interrupted or not model.stop_training:
        fit(period, epochs=2**31)  # the limit ends it


def _callbacks_of_chief(
    config: RunConfig,
    run: RunDirectory,
    data: RunData,
    model: keras.Model,
    progress: Progress,
    save: callbacks.SaveCheckpoints,
    started: float,
) -> list[keras.callbacks.Callback]:
    """The callbacks that translate, print, save and log."""
    metric = Criterion.of(config).metric
    in_order: list[keras.callbacks.Callback] = [
        progress,
        # Before the log: a validation is complete, and not repeated, once its checkpoint has it.
        save,
        callbacks.RunLog(
            run.log_path,
            started,
            data.batches.padding_fraction,
            sum(line["validation_seconds"] for line in log_before(run, model)),
            {"criterion": metric, "signature": save.signatures.get(metric, "")},
        ),
    ]
    if metric != LOSS.metric:
        translator = translator_of(config.data, model, *data.tokenizers)
        text = data.corpus.validation
        in_order.insert(0, callbacks.TranslationBleu(translator, text, num_samples=2, show=say))
    if config.training.tensorboard:
        in_order.append(callbacks.TensorBoardLog(run.tensorboard_path))
    return in_order


def _report(
    config: RunConfig,
    run: RunDirectory,
    workers: Workers,
    step: int,
    passes: float,
    signal: int,
    started: float,
) -> None:
    ended = (
        f"{'Stopped' if signal else 'Done'} at step {step:,} "
        f"after {(time.monotonic() - started) / 60:.1f} minutes, {passes:.1f} passes of the text."
    )
    if not workers.is_chief:
        say(f"{ended} This was worker {workers.index}; the chief writes the run.")
        return
    best = best_checkpoint(run)
    what = "The average" if best.path.parent == run.average_path else "Best checkpoint"
    criterion, value = Criterion.of(config), ""
    if criterion.metric in best.metrics:
        value = f", validation {criterion.label} {criterion.text(best.metrics[criterion.metric])}"
    say(f"{ended} {what}: step {best.step:,}{value}, in {run.path}.")
    say(f"To go on: {run.resume_command()}" if signal else f"Next: {run.next_commands(config)}")
