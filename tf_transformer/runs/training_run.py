"""What `tf-transformer train` does: from a configuration to a trained run directory."""

import contextlib
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_transformer.errors import ConfigError, InputError
from tf_transformer.evaluation import LOSS
from tf_transformer.files import remove_leftovers
from tf_transformer.machine import num_cores, plain_graphs, prepare_cpu
from tf_transformer.run_config import RunConfig
from tf_transformer.run_tables import TrainingConfig
from tf_transformer.runs.callbacks import Progress, SaveCheckpoints, ValidateMore
from tf_transformer.runs.data import prepare_data
from tf_transformer.runs.recipe import gpus_by_driver, parts_on_cores
from tf_transformer.runs.restore import best_checkpoint, restore_model, translator_of
from tf_transformer.runs.run import Position, Run, prepare_run
from tf_transformer.runs.run_directory import RunDirectory, say
from tf_transformer.runs.stopping import EarlyStopping, Limit
from tf_transformer.training.cluster import Cluster, WorkerError, worker_failures_named
from tf_transformer.training.distribution import separate_seeds, strategy_for
from tf_transformer.training.optimizers import step_of
from tf_transformer.training.signals import StopOnSignal, Terminated
from tf_transformer.training.translation_bleu import TranslationBleu
from tf_transformer.training.workers import Workers


def train_run(config: RunConfig, run_dir: str, *, resume: bool, started: float) -> int:
    """Train a model and write everything into its run directory.

    If `TF_CONFIG` or Slurm names several workers, each of them calls this function with the same
    arguments. Only the chief writes. To resume, all workers need access to its run directory. The
    `minutes` of the configuration count from `started`, a value of `time.monotonic()`.

    Returns:
        The number of the signal that ended training early (Ctrl-C, SIGTERM), or 0.
    """
    directory = RunDirectory.open(run_dir) if resume else RunDirectory.create(run_dir)
    if config.training.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs its package. Install it: pip install tensorboard")
    with _workers(config, directory, resume) as workers:
        if workers.all_reduce_max(resume) != resume:
            raise WorkerError(
                f"{directory.path}: another worker resumes a run, unseen by this one; keep the "
                f"run directory on a file system that all workers share."
            )
        run, position = prepare_run(config, directory, workers, resume), Position(started)
        if not resume:
            _initialize(run, position)
        run.require_same_on_all_workers(position)
        if not resume:
            run = _begun(run, position)
        # The lock creates the directory of a new run, so a start that fails before leaves none.
        with directory.lock() if workers.is_chief else contextlib.nullcontext():
            if resume:
                run, position = _resume(run, position)
            elif workers.is_chief:
                RunDirectory.create(run_dir)  # again: another process may have begun
                directory.begin(run.config, run.data.tokenizers, run.data.corpus)
            if position.origin and workers.is_chief and not run.checkpoints.latest():
                # From here on the run does not need the other run.
                run.checkpoints.write(run.model, 0, {}, **position.state_of(run))
            separate_seeds(run.model)  # last, since restored variables are equal on all replicas
            step = step_of(run.model)
            log = [line for line in directory.log() if line["step"] <= step]
            limit = Limit(run, position, log[-1]["validation_seconds"] if log else 0.0)
            stopping = EarlyStopping(run, position, log)
            reason = limit.reason() or stopping.reason()
            if reason and not step:
                raise InputError(f"{directory.path}: nothing is trained yet, and {reason}")
            if reason and position.is_validated:
                signal = 0
                say(f"Nothing to do: {reason}.")
                if workers.is_chief and run.has_changed_settings():
                    say("The changed settings are not saved, since nothing was trained with them.")
            else:
                signal = _fit(run, position, log, [stopping, limit], is_over=bool(reason))
                _report(run, position, signal)
            workers.all_reduce_max(0)  # workers wait until the chief has written
    return signal


def prepare_only(config: RunConfig, run_dir: str) -> None:
    """Make all that a run has before it trains, for the GPUs that `devices` counts."""
    directory, workers = RunDirectory.create(run_dir), Workers(tf.distribute.get_strategy())
    with directory.lock():
        directory.ids_path.mkdir(exist_ok=True)
        gpus = gpus_by_driver(config.training.devices)
        config, data = prepare_data(config, directory, workers, False, gpus)
        say(f"Prepared for {config.chosen.get('for', 'the given settings')}.\n{data.description}")
        directory.begin(config, data.tokenizers, data.corpus)
    say(f"To train: {directory.resume_command()}")


@contextlib.contextmanager
def _workers(config: RunConfig, directory: RunDirectory, resume: bool) -> Iterator[Workers]:
    """Prepare the process for training, on one machine or beside other workers."""
    cluster, around = Cluster.from_environment(), contextlib.nullcontext()
    if cluster is not None:
        cluster.wait_for_workers(config.training.worker_seconds)
        around = worker_failures_named(directory.path)
    elif config.training.devices == "cpu" or not tf.config.list_physical_devices("GPU"):
        # The recipe will choose the same. A resumed run without the setting is older than it.
        parts = 1 if resume else parts_on_cores(num_cores())
        prepare_cpu(num_cores(), config.training.batch_parts or parts)
        around = plain_graphs()
    with around:
        try:
            yield Workers(strategy_for(config.training.devices, cluster))
        except tf.errors.ResourceExhaustedError:
            raise InputError(
                "The device has too little memory for a batch. Give fewer --batch-tokens, and more "
                "--accumulation-steps to make up for them."
            ) from None


def _initialize(run: Run, position: Position) -> None:
    """Begin with the weights of another run, if the configuration names one."""
    path = run.config.training.initialize_from
    if path is None:
        return
    trained = restore_model(RunDirectory.open(path))
    for variable, old in zip(run.model.weights, trained.model.weights, strict=True):
        value = np.array(variable.numpy())
        value[tuple(map(slice, old.shape))] = old.numpy()  # new subwords come after the old ones
        variable.assign(value)
    position.origin = f"{path}, {trained.checkpoint.path.name}"
    position.is_validated = False  # the first line of the log tells where training began
    if run.workers.is_chief:
        say(f"Beginning with the weights of {position.origin}.")


def _begun(run: Run, position: Position) -> Run:
    """Describe a run without a checkpoint, and choose what depends on its speed."""
    run.describe()
    minutes = run.config.training.minutes
    if minutes is None or position.seconds > 60 * minutes:  # which `Limit` reports
        return run
    return run.with_choices_by_speed(position)


def _resume(run: Run, position: Position) -> tuple[Run, Position]:
    """Restore the checkpoint from which the chief continues, and return its position.

    A run without a checkpoint begins at the given position.
    """
    checkpoint = None
    if run.workers.is_chief:
        remove_leftovers(run.checkpoints.directory)
        checkpoint = next(run.checkpoints.intact(say), None)
    name = run.workers.broadcast(checkpoint.path.name.encode() if checkpoint else b"").decode()
    if name and not run.workers.is_chief:
        checkpoint = next((c for c in run.checkpoints.all() if c.path.name == name), None)
        if checkpoint is None:
            raise WorkerError(
                f"{run.checkpoints.directory}: this worker does not see the chief's {name}. "
                f"Keep the run directory on a file system that all workers share."
            )
    if checkpoint is None:
        _initialize(run, position)
        return _begun(run, position), position
    checkpoint.require(run.metadata)
    checkpoint.restore(run.model)
    if run.workers.is_chief:
        run.checkpoints.set_aside_after(checkpoint)
    run.describe()
    if checkpoint.seconds < 60 * (run.config.training.minutes or 0):
        # Build the graph before the clock starts, so that it takes none of the minutes.
        run.seconds_per_update(3, Position.at(checkpoint))
    return run, Position.at(checkpoint)


def _fit(
    run: Run,
    position: Position,
    log: Sequence[Mapping[str, Any]],
    enders: Sequence[keras.callbacks.Callback],
    is_over: bool,
) -> int:
    """Train until a callback stops it; if `is_over`, only validate the newest checkpoint.

    Returns the number of the signal that came, or 0.
    """
    training, model = run.config.training, run.model
    is_due = position.batches_seen % _batches_of_period(training) == 0
    validation, *others = (batches.dataset(num_epochs=1) for batches in run.data.validations)
    save, signals = SaveCheckpoints(run, position), StopOnSignal(run.workers.all_reduce_max)
    progress = Progress(run, position, sum(line["validation_seconds"] for line in log))
    callbacks = [ValidateMore(others)]
    if run.workers.is_chief:
        callbacks += _translating(run)
    callbacks.append(save)
    if run.workers.is_chief:
        if run.has_changed_settings():
            run.directory.save_config(run.config)  # resumed with another budget
        run.directory.truncate_log(step_of(model))
        callbacks.append(progress)
    callbacks += [*enders, signals]
    model.stop_training = is_over
    with contextlib.closing(progress), signals:
        try:
            # The validation that belongs to the newest checkpoint may have been interrupted.
            if not position.is_validated and (is_over or is_due):
                together = keras.callbacks.CallbackList(callbacks, model=model)
                found = model.evaluate(validation, verbose=0, return_dict=True, callbacks=together)
                together.on_epoch_end(0, {f"val_{name}": value for name, value in found.items()})
            if model.stop_training and not (is_over or signals.signal or step_of(model)):
                raise InputError("The time was over before an update. Give more --minutes.")
            while not model.stop_training:
                steps, epochs = _next_segment(run, position.batches_seen)
                steps //= _run_together(model, steps, training)
                model.fit(
                    run.batches_from(position.batches_seen),
                    validation_data=validation,
                    steps_per_epoch=steps,
                    shuffle=False,  # `TokenBatches` shuffles
                    epochs=epochs,
                    verbose=0,
                    callbacks=callbacks,
                )
        except Terminated:
            save.save()
        except tf.errors.OpError:
            failure, again = run.data.batches.failure, run.directory.resume_command()
            if not failure:
                raise
            if model.train_step.updates_together == 1:  # or a part of them may have been made
                save.save()
            latest = run.checkpoints.latest()
            saved = f" Everything up to step {latest.step:,} is saved." if latest else ""
            raise InputError(f"{failure}{saved} To go on: {again}") from None
    return signals.signal


def _batches_of_period(config: TrainingConfig) -> int:
    """Return how many batches lie between two validations."""
    return config.validation_steps * config.accumulation_steps


def _next_segment(run: Run, batches_seen: int) -> tuple[int, int]:
    """Return how many batches lie between validations, and how many times, until that changes."""
    training, period = run.config.training, _batches_of_period(run.config.training)
    rest = -batches_seen % period
    if run.total_steps is None:  # `Limit` ends training
        return (rest, 1) if rest else (period, 2**31)
    left = (run.total_steps - step_of(run.model)) * training.accumulation_steps
    if rest or left < period:
        return min(rest or period, left), 1
    return period, left // period


def _run_together(model: keras.Model, num_batches: int, config: TrainingConfig) -> int:
    """Let updates run together, as many as divide those of the batches; return their batches."""
    num_updates = num_batches // config.accumulation_steps
    model.train_step.run_together(math.gcd(num_updates, config.steps_per_execution or 1))
    return model.train_step.batches_together


def _translating(run: Run) -> list[keras.callbacks.Callback]:
    """Return the callbacks that translate the validation texts, unless the loss is the metric."""
    if run.metric == LOSS:
        return []
    label, signature = run.metric.label, run.signatures[run.metric.name]
    say(f"Validation {label} ({signature}) chooses the best checkpoint.")
    translator = translator_of(run.config.data, run.model, *run.data.tokenizers)
    first, *others = run.data.corpus.validations
    callbacks = [TranslationBleu(translator, first, 2, say)]
    for number, text in enumerate(others, 2):
        callbacks.append(TranslationBleu(translator, text, 0, say, f"_{number}"))
    return callbacks


def _report(run: Run, position: Position, signal: int) -> None:
    """Report how training ended and what to do next."""
    step, directory, metric = step_of(run.model), run.directory, run.metric
    passes = step * run.config.training.accumulation_steps / len(run.data.batches)
    ended = f"{'Stopped' if signal else 'Done'} at step {step:,} after "
    ended += f"{position.seconds / 60:.1f} minutes, {passes:.1f} passes of the text."
    if not run.workers.is_chief:
        say(f"{ended} This was worker {run.workers.index}; the chief writes the run.")
        return
    best = best_checkpoint(directory)
    value = best.metrics.get(metric.name)
    reached = "" if value is None else f", validation {metric.label} {metric.text(value)}"
    say(f"{ended} Best checkpoint: step {best.step:,}{reached}, in {directory.path}.")
    if value == 0 and metric != LOSS:
        say(f"A {metric.label} of 0 is no translation. Train longer, or on more text.")
    if signal:
        say(f"To go on: {directory.resume_command()}")
    else:
        say(f"Next: {directory.next_commands(run.config)}")
