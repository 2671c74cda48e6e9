"""What `tf-transformer train` does: from a configuration to a trained run directory."""

import contextlib
import dataclasses
import importlib.util
import math
import time
from typing import Any

import keras
import tensorflow as tf

from tf_transformer.errors import ConfigError, InputError
from tf_transformer.evaluation import LOSS, signatures
from tf_transformer.files import remove_leftovers
from tf_transformer.machine import num_cores, plain_graphs, prepare_cpu
from tf_transformer.models.architectures import build_model
from tf_transformer.run_config import RunConfig
from tf_transformer.runs.averaging import write_best_average
from tf_transformer.runs.callbacks import (
    EarlyStopping,
    Limit,
    Progress,
    SaveCheckpoints,
    ValidateMore,
)
from tf_transformer.runs.checkpoints import Checkpoints, tokenizer_metadata
from tf_transformer.runs.compile import compile_model, make_schedule, seconds_per_batch
from tf_transformer.runs.data import prepare_data
from tf_transformer.runs.recipe import choose_by_updates, metric_of, parts_on_cores
from tf_transformer.runs.restore import best_checkpoint, restore_model, translator_of
from tf_transformer.runs.run_directory import RunDirectory, say
from tf_transformer.runs.trimming import require_trained
from tf_transformer.training.cluster import Cluster, WorkerError, worker_failures_named
from tf_transformer.training.distribution import Workers, separate_seeds, strategy_for
from tf_transformer.training.optimizers import step_of
from tf_transformer.training.schedules import TimedTrapezoidSchedule
from tf_transformer.training.signals import StopOnSignal, Terminated
from tf_transformer.training.translation_bleu import TensorBoardLog, TranslationBleu

_FEWEST_UPDATES = 10
_FRACTION_OF_UPDATES = 0.93  # of the time is for updates, the rest for validation
# Settings that must not change when a run resumes.
_SHARED_SETTINGS = (
    "batch_tokens", "max_length", "source_noise", "precision", "seed", "schedule", "learning_rate",
    "warmup_steps", "decay_fraction", "label_smoothing", "accumulation_steps", "batch_parts",
    "clip_norm", "weight_decay",
)  # fmt: skip
_ORIGIN = "initialized from"  # a key of the run metadata


def train_run(config: RunConfig, run_dir: str, *, resume: bool, started: float) -> int:
    """Train a model and write everything into its run directory.

    If `TF_CONFIG` or Slurm names several workers, each of them calls this function with the same
    arguments. Only the chief writes. To resume, all workers need access to its run directory. The
    `minutes` of the configuration count from `started`, a value of `time.monotonic()`.

    Returns:
        The number of the signal that ended training early (Ctrl-C, SIGTERM), or 0.
    """
    directory = RunDirectory.open(run_dir) if resume else RunDirectory.create(run_dir)
    require_trained(directory)
    if config.training.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs its package. Install it: pip install tensorboard")
    cluster, around = Cluster.from_environment(), contextlib.nullcontext()
    if cluster is not None:
        cluster.wait_for_workers()
        around = worker_failures_named(directory.path)
    elif not tf.config.list_physical_devices("GPU"):
        # The recipe will choose the same. A resumed run without the setting is older than it.
        parts = 1 if resume else parts_on_cores(num_cores())
        prepare_cpu(num_cores(), config.training.batch_parts or parts)
        around = plain_graphs()
    with around:
        workers = Workers(strategy_for(config.training.devices, cluster))
        return Run(config, directory, workers, resume, started).train()


@dataclasses.dataclass
class Run:
    """One training run in this process: `setup`, `begin`, `fit` and `finish`.

    Attributes:
        config: The configuration, complete after `setup`.
        resume: Whether the run began in an earlier process.
        started: The `time.monotonic()` from which `minutes` count. In a resumed run it is earlier
            by the time that the run took before.
        batches_seen: Batches of training data consumed so far.
        is_validated: Whether the newest checkpoint has its metrics.
        signal: The number of the signal that ended training, or 0.
        origin: The checkpoint of another run that gave the first weights; empty if none did.
        total_steps: Number of updates in the whole training; None if time ends it.
        earlier_log: The lines of the log up to the step at which this process begins.
        signatures: sacreBLEU's signatures of the translation metrics; empty except on the chief.
    """

    config: RunConfig
    directory: RunDirectory
    workers: Workers
    resume: bool
    started: float
    batches_seen: int = 0
    is_validated: bool = True
    signal: int = 0
    origin: str = ""

    def train(self) -> int:
        """Run all parts; return the number of the signal that ended training early, or 0."""
        self.setup()
        # The lock creates the directory of a new run, so a start that fails before leaves none.
        with self.directory.lock() if self.workers.is_chief else contextlib.nullcontext():
            self.begin()
            reason = self._reason_to_stop()
            if reason and not step_of(self.model):
                raise InputError(f"{self.directory.path}: nothing is trained yet, and {reason}")
            if reason and self.is_validated:
                say(f"Nothing to do: {reason}.")
                if self.workers.is_chief and self._has_changed_settings():
                    say("The changed settings are not saved, since nothing was trained with them.")
                # The averaging at the end of the run may have been interrupted.
                if self.workers.is_chief and not self.directory.average_path.is_dir():
                    write_best_average(self)
            else:
                self.fit(is_over=bool(reason))
                self.finish()
            self.workers.all_reduce_max(0)  # workers wait until the chief has written
        return self.signal

    def setup(self) -> None:
        """Prepare the data, compile the model, and complete the configuration."""
        keras.utils.set_random_seed(self.config.training.seed)
        if self.config.training.deterministic:
            tf.config.experimental.enable_op_determinism()
        self.config, self.data = prepare_data(
            self.config, self.directory, self.workers, self.resume
        )
        training, self.metric = self.config.training, metric_of(self.config)
        path = self.directory.checkpoints_path
        self.checkpoints = Checkpoints(path, self.metric, training.keep_checkpoints)
        self.total_steps = training.steps
        if training.epochs is not None:
            # The batches of one update may come from two epochs.
            num_batches = training.epochs * len(self.data.batches)
            self.total_steps = -(-num_batches // training.accumulation_steps)
        with self.workers.strategy.scope():
            self.model = build_model(self.config.model, training.precision)
            self.schedule = make_schedule(self.config, self.total_steps)
            compile_model(self.model, training, self.schedule)
        if not self.resume:
            self._initialize()
        self.workers.require_same({**self.metadata, **vars(training), "devices": None})
        if not self.resume:
            self._announce()
            if training.minutes is not None:
                self._choose_by_speed()

    def begin(self) -> None:
        """Create the files of the run, or restore the checkpoint from which it resumes."""
        if self.resume:
            self._restore()
        elif self.workers.is_chief:
            RunDirectory.create(self.directory.path)  # again: another process may have begun
            corpus = self.data.corpus
            self.directory.begin(self.config, *self.data.tokenizers, corpus.test, corpus.summary)
        separate_seeds(self.model)
        step = step_of(self.model)
        if self.origin and not self.checkpoints.latest() and self.workers.is_chief:
            # From here on the run does not need the other run.
            self.checkpoints.write(self.model, step, {}, run_metadata=self.metadata)
        self.earlier_log = [line for line in self.directory.log() if line["step"] <= step]
        self.signatures = {}
        if self.metric != LOSS and self.workers.is_chief:
            self.signatures = signatures(list(self.data.corpus.validation.targets), "val_")
            signature = self.signatures[self.metric.name]
            say(f"Validation {self.metric.label} ({signature}) chooses the best checkpoint.")
        self._limit, self._patience = Limit(self), EarlyStopping(self)

    def _has_changed_settings(self) -> bool:
        """Return whether the settings of a resumed run differ from those in its directory."""
        return self.config.to_dict() != self.directory.config().to_dict()

    def fit(self, is_over: bool = False) -> None:
        """Train until a limit or a signal; if `is_over`, only validate the newest checkpoint."""
        training = self.config.training
        period = training.validation_steps * training.accumulation_steps
        rest = -self.batches_seen % period  # batches left in the interrupted period
        batches, *others = (
            validation.dataset(num_epochs=1) for validation in self.data.validations
        )
        save, progress = SaveCheckpoints(self), Progress(self)
        signals = StopOnSignal(self.workers.all_reduce_max)
        callbacks = [ValidateMore(others)]
        if self.workers.is_chief and self.metric != LOSS:
            translator = translator_of(self.config.data, self.model, *self.data.tokenizers)
            for number, text in enumerate(self.data.corpus.validations, 1):
                samples, suffix = (2, "") if number == 1 else (0, f"_{number}")
                callbacks.append(TranslationBleu(translator, text, samples, say, suffix))
        callbacks.append(save)
        if self.workers.is_chief:
            if self._has_changed_settings():
                self.directory.save_config(self.config)  # resumed with another budget
            self.directory.truncate_log(step_of(self.model))
            callbacks.append(progress)
            if training.tensorboard:
                callbacks.append(TensorBoardLog(self.directory.tensorboard_path))
        callbacks += [self._patience, self._limit, signals]
        self.model.stop_training = is_over
        with contextlib.closing(progress), signals:
            try:
                # The validation that belongs to the newest checkpoint may have been interrupted.
                if not self.is_validated and (is_over or not rest):
                    self._validate(batches, callbacks)
                stopped = self.model.stop_training and not (is_over or signals.signal)
                if stopped and not step_of(self.model):
                    raise InputError("The time was over before an update. Give more --minutes.")
                for steps, epochs in ((rest, 1), (period, 2**31)):  # `Limit` ends the second
                    if steps and not self.model.stop_training:
                        self.model.fit(
                            self._training_dataset(),
                            validation_data=batches,
                            steps_per_epoch=steps,
                            shuffle=False,  # `TokenBatches` shuffles
                            epochs=epochs,
                            verbose=0,
                            callbacks=callbacks,
                        )
            except Terminated:
                save.save()
            except tf.errors.OpError:
                failure, again = self.data.batches.failure, self.directory.resume_command()
                if not failure:
                    raise
                save.save()
                message = f"{failure} All updates so far are saved. To go on: {again}"
                raise InputError(message) from None
        self.signal = signals.signal

    def finish(self) -> None:
        """Average the last checkpoints, and report how training ended and what to do next."""
        if self.workers.is_chief and not self.signal:
            minutes = self.config.training.minutes
            write_best_average(self, self.started + 60 * (minutes or math.inf))
        step, minutes = step_of(self.model), (time.monotonic() - self.started) / 60
        passes = step * self.config.training.accumulation_steps / len(self.data.batches)
        ended = f"{'Stopped' if self.signal else 'Done'} at step {step:,} after {minutes:.1f} "
        ended += f"minutes, {passes:.1f} passes of the text."
        if not self.workers.is_chief:
            say(f"{ended} This was worker {self.workers.index}; the chief writes the run.")
            return
        directory, metric, best = self.directory, self.metric, best_checkpoint(self.directory)
        what = "The average" if best.path.parent == directory.average_path else "Best checkpoint"
        value = best.metrics.get(metric.name)
        reached = "" if value is None else f", validation {metric.label} {metric.text(value)}"
        say(f"{ended} {what}: step {best.step:,}{reached}, in {directory.path}.")
        if value == 0 and metric != LOSS:
            say(f"A {metric.label} of 0 is no translation. Train longer, or on more text.")
        if self.signal:
            say(f"To go on: {directory.resume_command()}")
        else:
            say(f"Next: {directory.next_commands(self.config)}")

    @property
    def metadata(self) -> dict[str, Any]:
        """The settings and data that must not change when the run resumes."""
        settings = {**vars(self.config.data), **vars(self.config.training)}
        return {
            **self.model.config.to_dict(),
            **{name: settings[name] for name in _SHARED_SETTINGS},
            **tokenizer_metadata(*self.data.tokenizers),
            "optimizer": type(self.model.optimizer).__name__,
            "training corpus": str(self.data.corpus.train.fingerprint),
            "weights of corpora": str(self.config.data.weight),
            "validation corpus": str(self.data.corpus.validation.fingerprint),
            **({_ORIGIN: self.origin} if self.origin else {}),
        }

    def _announce(self) -> None:
        if not self.workers.is_chief:
            return
        say(self.data.description)
        if "training.epochs" in self.config.chosen:
            length = f"{self.config.training.epochs} epochs, {self.total_steps:,} updates"
            say(f"No --minutes, --epochs or --steps is given: training for {length}.")
        say(f"{self.model.count_params():,} parameters. Building the graph of an update.")

    def _choose_by_speed(self) -> None:
        """Choose the settings that depend on the number of updates by the measured speed."""
        minutes = self.config.training.minutes
        seconds_per_update = self._measure(max(4, min(20, round(minutes))))
        seconds_spent = time.monotonic() - self.started
        seconds = _FRACTION_OF_UPDATES * max(0.0, 60 * minutes - seconds_spent)
        updates = self.workers.all_reduce_max(int(seconds / seconds_per_update))  # clocks differ
        if updates < _FEWEST_UPDATES:
            raise InputError(
                f"The {minutes:g} minutes have time for {updates} updates, after "
                f"{seconds_spent:.0f} s for the text and the graph. Nothing was written; give more "
                f"--minutes."
            )
        self.config = choose_by_updates(self.config, updates)
        if isinstance(self.schedule, TimedTrapezoidSchedule):
            self.schedule.peak.assign(self.config.training.learning_rate)
            self.schedule.warmup_steps.assign(self.config.training.warmup_steps)

    def _measure(self, num_batches: int) -> float:
        """Measure the seconds per update on some batches; the result is the same on all workers."""
        seconds = seconds_per_batch(self.model, self._training_dataset(), num_batches)
        seconds *= self.config.training.accumulation_steps
        return self.workers.all_reduce_max(max(1, round(1e6 * seconds))) / 1e6

    def _initialize(self) -> None:
        """Begin with the weights of another run, if the configuration names one."""
        path = self.config.training.initialize_from
        if path is not None:
            trained = restore_model(RunDirectory.open(path))
            self.model.set_weights(trained.model.get_weights())
            self.origin = f"{path}, {trained.checkpoint.path.name}"
            self.is_validated = False  # the first line of the log tells where training began
            if self.workers.is_chief:
                say(f"Beginning with the weights of {self.origin}.")

    def _restore(self) -> None:
        """Restore the checkpoint from which the chief continues, if there is one."""
        checkpoint = None
        if self.workers.is_chief:
            remove_leftovers(self.checkpoints.directory)
            checkpoint = next(self.checkpoints.intact(say), None)
        name = self.workers.broadcast(checkpoint.path.name.encode() if checkpoint else b"").decode()
        if name and not self.workers.is_chief:
            checkpoint = next((c for c in self.checkpoints.all() if c.path.name == name), None)
            if checkpoint is None:
                raise WorkerError(
                    f"{self.checkpoints.directory}: this worker does not see the chief's {name}. "
                    f"Keep the run directory on a file system that all workers share."
                )
        if checkpoint is None:
            self._initialize()
            self._announce()
            return
        checkpoint.require(self.metadata)
        checkpoint.restore(self.model)
        self.batches_seen = checkpoint.batches_seen
        self.origin = checkpoint.run_metadata.get(_ORIGIN, "")
        self.is_validated = bool(checkpoint.metrics)
        if self.workers.is_chief:
            self.checkpoints.set_aside_after(checkpoint)
        self._announce()
        if checkpoint.seconds < 60 * (self.config.training.minutes or 0):
            # Build the graph before `started` is set, so that it takes none of the minutes.
            self._measure(3)
        self.started = time.monotonic() - checkpoint.seconds

    def _reason_to_stop(self) -> str:
        """Return why the run has already reached its end, or an empty str."""
        training, step = self.config.training, step_of(self.model)
        if self._limit.fraction >= 1:
            if self.total_steps is None:
                return f"its {training.minutes:g} minutes are over; give more --minutes"
            total = f"{self.total_steps:,}"
            return f"the run is at step {step:,} of {total}; give more --epochs or --steps"
        if self._patience.is_due:
            return (
                f"the last {training.patience} validations up to step {step:,} were not better "
                f"than one before; a new run without --patience would go on"
            )
        return ""

    def _validate(
        self, dataset: tf.data.Dataset, callbacks: list[keras.callbacks.Callback]
    ) -> None:
        """Run the missing validation of the newest checkpoint."""
        together = keras.callbacks.CallbackList(callbacks, model=self.model)
        logs = self.model.evaluate(dataset, verbose=0, return_dict=True, callbacks=together)
        together.on_epoch_end(0, {f"val_{name}": value for name, value in logs.items()})

    def _training_dataset(self) -> tf.data.Dataset:
        # The order of the batches depends only on the seed and the epoch, so a resumed run sees the
        # batches that the interrupted run would have seen.
        epoch, skip = divmod(self.batches_seen, len(self.data.batches))
        accumulation = self.config.training.accumulation_steps
        return self.data.batches.dataset(epoch, None, skip, accumulation)
