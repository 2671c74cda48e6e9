"""A training run in this process: what is prepared once, and where the run is in its training."""

import dataclasses
import itertools
import math
import statistics
import time
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from tf_transformer.config_fields import Trait
from tf_transformer.errors import InputError
from tf_transformer.evaluation import LOSS, Metric, signatures
from tf_transformer.models.architectures import build_model
from tf_transformer.run_config import RunConfig, names_with
from tf_transformer.runs.checkpoints import Checkpoint, Checkpoints, tokenizer_metadata
from tf_transformer.runs.compilation import compile_model, make_schedule
from tf_transformer.runs.data import RunData, prepare_data
from tf_transformer.runs.recipe import choose_by_updates, metric_of
from tf_transformer.runs.run_directory import RunDirectory, say
from tf_transformer.training.distribution import WorkersStrategy
from tf_transformer.training.schedules import TimedTrapezoidSchedule
from tf_transformer.training.workers import Workers

_FEWEST_UPDATES = 10
_FRACTION_OF_UPDATES = 0.93  # of the time is for updates, the rest for validation
_ORIGIN = "initialized from"  # a key of the run metadata


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run that is prepared; none of its parts changes until its end.

    Attributes:
        config: The complete configuration.
        model: The compiled model, on the devices of the workers.
        schedule: The learning rates of its optimizer.
        metric: The validation metric that selects the best checkpoint.
        total_steps: Number of updates in the whole training; None if time ends it.
        signatures: sacreBLEU's signatures of the translation metrics; empty except on the chief.
    """

    config: RunConfig
    directory: RunDirectory
    workers: Workers
    data: RunData
    model: keras.Model
    schedule: LearningRateSchedule
    metric: Metric
    checkpoints: Checkpoints
    total_steps: int | None
    signatures: dict[str, str]

    @property
    def metadata(self) -> dict[str, Any]:
        """The settings and data that must not change when the run resumes."""
        settings, fixed = self.config.settings(), names_with(Trait.WEIGHTS)
        corpus = self.data.corpus
        return {
            **self.model.config.to_dict(),
            **{name.partition(".")[2]: settings[name] for name in settings if name in fixed},
            **tokenizer_metadata(*self.data.tokenizers),
            "optimizer": type(self.model.optimizer).__name__,
            "training corpus": corpus.train.fingerprint,
            "validation corpus": corpus.validation.fingerprint,
        }

    def require_same_on_all_workers(self, position: "Position") -> None:
        """Raise a `ConfigError` if this worker would train something else than the chief."""
        local = names_with(Trait.LOCAL)
        settings = {k: value for k, value in self.config.settings().items() if k not in local}
        self.workers.require_same({**self.metadata, **settings, _ORIGIN: position.origin})

    def has_changed_settings(self) -> bool:
        """Return whether the settings of a resumed run differ from those in its directory."""
        return self.config.to_dict() != self.directory.config().to_dict()

    def describe(self) -> None:
        """Say what is trained, and on what."""
        if not self.workers.is_chief:
            return
        say(self.data.description)
        if {"training.epochs", "training.steps"} & {*self.config.chosen}:
            epochs, length = self.config.training.epochs, f"{self.total_steps:,} updates"
            length = length if epochs is None else f"{epochs} epochs, {length}"
            say(f"No --minutes, --epochs or --steps is given: training for {length}.")
        say(f"{self.model.count_params():,} parameters. Building the graph of an update.")

    def batches_from(self, number: int) -> Any:
        """Return the training batches after the first `number` ones, a dataset for `fit`.

        Each of several workers makes its rows of them only.

        Their order depends only on the seed and the epoch, so a resumed run sees the batches that
        the interrupted run would have seen.
        """
        epoch, skip = divmod(number, len(self.data.batches))
        of_run = epoch, None, skip
        strategy = self.workers.strategy
        if not isinstance(strategy, WorkersStrategy):
            return self.data.batches.dataset(*of_run)
        shares = strategy.replicas_here, strategy.num_replicas_in_sync
        return strategy.distribute_datasets_from_function(
            lambda _: self.data.batches.dataset(*of_run, *shares)
        )

    def seconds_per_update(self, num_updates: int, position: "Position") -> float:
        """Measure the median time of an update, without the first two of at least 3 updates.

        All workers get the same result. The variables are restored afterwards, on all replicas to
        what the first one has, so call this before `separate_seeds`. The graph of an update is
        kept: `fit` need not build it again.
        """
        model, times = self.model, []
        variables = [*model.variables, *model.optimizer.variables]
        values = [variable.numpy() for variable in variables]

        def note(batch: int, logs: dict[str, Any]) -> None:
            float(logs["loss"])  # waits for the device
            times.append(time.monotonic())

        clock = keras.callbacks.LambdaCallback(on_train_batch_end=note)
        batches = self.batches_from(position.batches_seen)
        model.fit(batches, steps_per_epoch=num_updates, shuffle=False, verbose=0, callbacks=[clock])
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        seconds = statistics.median(b - a for a, b in itertools.pairwise(times[1:]))
        return self.workers.all_reduce_max(max(1, round(1e6 * seconds))) / 1e6

    def with_choices_by_speed(self, position: "Position") -> "Run":
        """Choose the settings that depend on the number of updates by the measured speed."""
        minutes = self.config.training.minutes
        seconds_per_update = self.seconds_per_update(
            max(4, min(20, round(minutes)) // self.config.training.accumulation_steps), position
        )
        seconds = _FRACTION_OF_UPDATES * max(0.0, 60 * minutes - position.seconds)
        updates = self.workers.all_reduce_max(int(seconds / seconds_per_update))  # clocks differ
        if updates < _FEWEST_UPDATES:
            raise InputError(
                f"The {minutes:g} minutes have time for {updates} updates, after "
                f"{position.seconds:.0f} s for the text and the graph. Nothing was written; give "
                f"more --minutes."
            )
        config = choose_by_updates(self.config, updates)
        if isinstance(self.schedule, TimedTrapezoidSchedule):
            self.schedule.peak.assign(config.training.learning_rate)
            self.schedule.warmup_steps.assign(config.training.warmup_steps)
        return dataclasses.replace(self, config=config)


@dataclasses.dataclass
class Position:
    """Where a run is in its training, which checkpoints keep.

    Attributes:
        started: The `time.monotonic()` from which `minutes` count. In a resumed run it is earlier
            by the time that the run took before.
        batches_seen: Batches of training data consumed so far.
        is_validated: Whether the newest checkpoint has its metrics.
        origin: The checkpoint of another run that gave the first weights; empty if none did.
    """

    started: float
    batches_seen: int = 0
    is_validated: bool = True
    origin: str = ""

    @property
    def seconds(self) -> float:
        """Seconds since `started`."""
        return time.monotonic() - self.started

    @classmethod
    def at(cls, checkpoint: Checkpoint) -> "Position":
        """Return the position of a checkpoint, from which the run goes on now."""
        started = time.monotonic() - checkpoint.seconds
        origin = checkpoint.run_metadata.get(_ORIGIN, "")
        return cls(started, checkpoint.batches_seen, bool(checkpoint.metrics), origin)

    def state_of(self, run: Run) -> dict[str, Any]:
        """Return the `state` of a checkpoint at this position; see `Checkpoints.write`."""
        origin = {_ORIGIN: self.origin} if self.origin else {}
        metadata = {**run.metadata, **origin}
        state = {"batches_seen": self.batches_seen, "seconds": self.seconds}
        return {**state, "run_metadata": metadata}


def prepare_run(
    config: RunConfig, directory: RunDirectory, workers: Workers, is_resumed: bool
) -> Run:
    """Prepare the data, complete the configuration, and compile the model."""
    keras.utils.set_random_seed(config.training.seed)
    if config.training.deterministic:
        tf.config.experimental.enable_op_determinism()
    config, data = prepare_data(config, directory, workers, is_resumed)
    training, metric = config.training, metric_of(config)
    total_steps = training.steps
    if training.epochs is not None:
        # The batches of one update may come from two epochs.
        num_batches = training.epochs * len(data.batches)
        total_steps = math.ceil(num_batches / training.accumulation_steps)
    with workers.strategy.scope():
        model = build_model(config.model, training.precision)
        schedule = make_schedule(config, total_steps)
        compile_model(model, training, schedule)
    of_translations = {}
    if metric != LOSS and workers.is_chief:
        of_translations = signatures(list(data.corpus.validation.targets), "val_")
    checkpoints = Checkpoints(directory.checkpoints_path, metric, training.keep_checkpoints)
    return Run(
        config, directory, workers, data, model, schedule, metric, checkpoints, total_steps,
        of_translations,
    )  # fmt: skip
