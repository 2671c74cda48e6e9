"""What `tf-transformer train` does: from a configuration to a run directory."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import sys
import time

import keras
import tensorflow as tf

from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.corpus import default_vocab_size, load_corpus
from tf_transformer.models.presets import transformer_config
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training import callbacks, endings, logs
from tf_transformer.training.adam import UseAverages
from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.cluster import Cluster, WorkerError, losses_named
from tf_transformer.training.distribution import (
    from_chief,
    highest_of_workers,
    num_workers,
    separate_seeds,
    strategy_for,
    worker_index,
)
from tf_transformer.training.progress import Progress
from tf_transformer.training.recipe import compile_model
from tf_transformer.training.run_directory import RunDirectory, build_model

DEFAULT_EPOCHS = 10


def train(config, run_dir, make_translator, *, resume=False, started=None):
    """Trains a translator and leaves everything in its run directory.

    Where `TF_CONFIG` or Slurm names several workers, each of them calls this with the same
    arguments; the chief alone writes, and to resume, all must see its run directory.

    Args:
        config: `RunConfig`.
        run_dir: path of the run directory.
        make_translator: `(model, source_tokenizer, target_tokenizer, max_length)` -> function
            from a list of str to a list of str; it measures BLEU on the validation sentences.
        resume: bool, whether to continue the run in `run_dir` from its newest checkpoint.
        started: float, `time.monotonic()` from which `minutes` counts; None is now.

    Returns:
        int, the number of the signal that ended training early (Ctrl-C, SIGTERM), or 0.

    Raises:
        InputError: with one line that says what to do.
    """
    started = time.monotonic() if started is None else started
    run = RunDirectory.open(run_dir) if resume else RunDirectory.create(run_dir)
    # What cannot be should not wait for the tokenizer.
    transformer_config(config.model, 260, 260, joint=config.tokenizer.joint, pad_id=0)
    config = _with_length(config)
    cluster = Cluster.from_environment()
    if cluster is None:
        strategy = strategy_for(config.training.devices)
        return _train(config, run, make_translator, strategy, resume, started)
    cluster.meet()
    with losses_named(run.path):
        strategy = strategy_for(config.training.devices, cluster)
        return _train(config, run, make_translator, strategy, resume, started)


def _train(config, run, make_translator, strategy, resume, started):
    is_chief = worker_index(strategy) == 0
    say = _say if is_chief else _say_nothing
    keras.utils.set_random_seed(config.training.seed)
    if config.training.deterministic:
        tf.config.experimental.enable_op_determinism()

    corpus = load_corpus(config.data)
    if resume:
        source_tokenizer, target_tokenizer = run.tokenizers()
    else:
        config = _with_vocab_size(config)
        say(
            f"Training a tokenizer of {config.tokenizer.vocab_size:,} pieces "
            f"on {len(corpus.train):,} sentence pairs."
        )
        source_tokenizer, target_tokenizer = _train_tokenizers(
            config.tokenizer, corpus.train, strategy
        )
    began = time.monotonic()
    batches, validation = (
        TokenBatches.from_text(
            text,
            source_tokenizer,
            target_tokenizer,
            batch_tokens=config.data.batch_tokens,
            max_length=config.data.max_length,
            seed=seed,
            cache_dir=cache_dir,
        )
        for text, seed, cache_dir in (
            (corpus.train, config.training.seed, config.data.data_cache),
            (corpus.validation, None, None),
        )
    )
    seconds = time.monotonic() - began
    with strategy.scope():
        model = build_model(config, source_tokenizer, target_tokenizer)
        compile_model(model, config.training)
    config = _completed(config, model.config)
    made_with = _made_with(config, corpus, source_tokenizer, target_tokenizer, model)
    _require_same(strategy, {**made_with, **dataclasses.asdict(config.training), "devices": None})
    # A run that begins has no directory before this, so that a failed start leaves none.
    with run.lock() if is_chief else contextlib.nullcontext():
        checkpoint = None
        if resume:
            checkpoint = _checkpoint_of_all(run, strategy)
            if checkpoint is not None:
                checkpoint.require(made_with)
                checkpoint.restore(model)
            if is_chief and config != run.config():
                run.save_config(config)
        elif is_chief:
            run = RunDirectory.create(run.path)  # another process may have been faster
            run.begin(config, source_tokenizer, target_tokenizer, corpus.test)
        separate_seeds(model)
        if is_chief:
            _describe(corpus, batches, validation, model, seconds)
        translate = make_translator(
            model, source_tokenizer, target_tokenizer, config.data.max_length
        )
        save = callbacks.SaveCheckpoints(
            Checkpoints(run.checkpoints.directory, config.training.keep_checkpoints),
            every=config.training.checkpoint_steps,
            position=checkpoint.position if checkpoint else 0,
            made_with=made_with,
            writes=is_chief,
        )
        stopped_by = _fit(
            config.training, run, model, batches, validation, corpus, translate, save, started
        )
        highest_of_workers(strategy, 0)  # none ends before the chief has written all
        return stopped_by


def _fit(config, run, model, batches, validation, corpus, translate, save, started):
    worker = worker_index(model.distribute_strategy)
    agree = functools.partial(highest_of_workers, model.distribute_strategy)
    step = int(model.optimizer.iterations.numpy())
    accumulation = config.accumulation_steps
    updates_in_epoch = -(-len(batches) // accumulation)
    total_steps = config.steps
    if config.epochs is not None:
        total_steps = config.epochs * updates_in_epoch
    if total_steps is not None and step >= total_steps:
        _say(f"Nothing to do: the run is at step {step:,} of {total_steps:,}.")
        return 0
    patience = _patience(config, run, step, agree)
    if patience and patience.is_over:
        _say(
            f"Nothing to do: the last {config.patience} validations up to step {step:,} were not "
            f"better than one before."
        )
        return 0
    interrupt = endings.StopOnSignal(agree)
    limit = (
        endings.StepLimit(total_steps)
        if total_steps is not None
        else endings.TimeLimit(config.minutes, started, agree)
    )
    tokens_per_batch = batches.num_target_tokens / len(batches)
    progress = Progress(tokens_per_batch, started, total_steps, config.minutes, accumulation)
    of_chief = []
    if worker == 0:
        run.forget_log_after(step)
        of_chief = [
            callbacks.TranslationBleu(translate, corpus.validation, num_samples=2, show=_say),
            progress,
            logs.RunLog(run.log_path, started, batches.padding_share),
            *([logs.TensorBoardLog(run.tensorboard_path)] if config.tensorboard else []),
        ]
    in_order = [
        UseAverages(),
        callbacks.StopOnNan(run.checkpoints),
        *of_chief,
        save,
        *([logs.CsvLog(run.log, run.csv_path)] if worker == 0 else []),
        *([patience] if patience else []),
        limit,
        interrupt,
    ]

    def fit(batches_in_period, periods):
        # The order of the data follows from the position, so a resumed run sees what the other
        # would have.
        epoch, skip = divmod(save.position, len(batches))
        model.fit(
            batches.dataset(epoch, None, skip, accumulation, config.chunked_logits),
            validation_data=validation.dataset(num_epochs=1, labels_as_input=config.chunked_logits),
            steps_per_epoch=batches_in_period,
            shuffle=False,  # the batches are in their order already
            epochs=periods,
            verbose=0,
            callbacks=in_order,
        )

    period = (config.validation_steps or updates_in_epoch) * accumulation
    begun = save.position % period
    try:
        if begun:  # the rest of the period in which the run was stopped
            fit(period - begun, periods=1)
        if not begun or not model.stop_training:
            fit(period, periods=2**31)  # the limit ends it
    except endings.Terminated:
        save.save({})
    finally:
        interrupt.restore()
        progress.close()
    step = int(model.optimizer.iterations.numpy())
    stopped = (
        f"{'Stopped' if interrupt.signal else 'Done'} at step {step:,}"
        f" after {(time.monotonic() - started) / 60:.1f} minutes."
    )
    if worker:
        _say(f"{stopped} This was worker {worker}; the chief writes the run.")
        return interrupt.signal
    best = run.checkpoints.best()
    bleu = f", validation BLEU {best.scores['val_bleu']:.2f}" if "val_bleu" in best.scores else ""
    _say(f"{stopped} Best checkpoint: step {best.step:,}{bleu}, in {run.path}.")
    if not interrupt.signal:
        _say(f"Next: {run.next_commands()}")
    return interrupt.signal


def _patience(config, run, step, agree):
    """What ends training when BLEU no longer rises, or None; it knows what is in the log."""
    if config.patience is None:
        return None
    lines = [line for line in run.log() if line["step"] <= step]
    return endings.Patience(
        config.patience,
        earlier=[line["val_bleu"] for line in lines if "val_bleu" in line],
        agree=agree,
    )


def _made_with(config, corpus, source_tokenizer, target_tokenizer, model):
    """What a run that goes on must share with the one that stopped."""
    return {
        **model.config.to_dict(),
        "optimizer": type(model.optimizer).__name__,
        "precision": config.training.precision,
        "seed": config.training.seed,
        "accumulation_steps": config.training.accumulation_steps,
        "clip_norm": config.training.clip_norm,
        "ema_momentum": config.training.ema_momentum,
        "batch_tokens": config.data.batch_tokens,
        "max_length": config.data.max_length,
        "training corpus": str(corpus.train.fingerprint),
        "validation corpus": str(corpus.validation.fingerprint),
        "source tokenizer": _digest(source_tokenizer.model),
        "target tokenizer": _digest(target_tokenizer.model),
    }


def _digest(content):
    return f"SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"


def _train_tokenizers(config, text, strategy):
    """The chief trains them, and every worker has the chief's."""
    sides = [itertools.chain.from_iterable(text)]
    if not config.joint:
        sides = [(source for source, _ in text), (target for _, target in text)]
    trained = []
    for side in sides:
        content = b""
        if worker_index(strategy) == 0:
            tokenizer = SentencePieceTokenizer.train(side, config.vocab_size, config.model_type)
            content = tokenizer.model
        trained.append(SentencePieceTokenizer(from_chief(strategy, content)))
    return trained[0], trained[-1]


def _checkpoint_of_all(run, strategy):
    """The checkpoint that the chief goes on from, on every worker; None where there is none."""
    is_chief = worker_index(strategy) == 0
    checkpoint = run.checkpoints.readable(None, _say) if is_chief else None
    name = from_chief(strategy, checkpoint.path.name.encode() if checkpoint else b"").decode()
    if is_chief or not name:
        return checkpoint
    found = [c for c in run.checkpoints.all() if c.path.name == name]
    if not found:
        raise WorkerError(
            f"{run.checkpoints.directory}: this worker does not see the chief's {name}. "
            f"Keep the run directory on a file system that all workers share."
        )
    return found[0]


def _require_same(strategy, settings):
    """Refuses to train where a worker's sentences or settings are not the chief's."""
    of_chief = json.loads(from_chief(strategy, json.dumps(settings).encode()))
    different = [
        f"{name} is {of_chief.get(name)} on the chief and {value} here"
        for name, value in settings.items()
        if of_chief.get(name) != value
    ]
    if different:
        raise WorkerError(
            f"worker {worker_index(strategy)} of {num_workers(strategy)} would train something "
            f"else: {'; '.join(different)}. Give every worker the same files and options."
        )


def _with_vocab_size(config):
    if config.tokenizer.vocab_size is not None:
        return config
    size = default_vocab_size(config.data.corpus)
    return dataclasses.replace(
        config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=size)
    )


def _completed(config, sizes):
    """The configuration with everything written out that a default or a preset decided."""
    fields = (*config.model.SIZES, "tie_embeddings")
    model = dataclasses.replace(config.model, **{name: getattr(sizes, name) for name in fields})
    return dataclasses.replace(config, model=model)


def _with_length(config):
    training = config.training
    if any(getattr(training, name) is not None for name in training.LENGTHS):
        return config
    return dataclasses.replace(
        config, training=dataclasses.replace(training, epochs=DEFAULT_EPOCHS)
    )


def _describe(corpus, batches, validation, model, seconds):
    parts = (("training", corpus.train, batches), ("validation", corpus.validation, validation))
    for name, text, part in parts:
        _say(
            f"{len(text) - part.num_too_long:,} {name} pairs of {corpus.name}; left out: "
            f"{text.num_blank:,} blank, {part.num_too_long:,} over-long."
        )
    _say(f"Tokenized and batched in {seconds:.1f} s, {len(corpus.train) / seconds:,.0f} pairs/s.")
    _say(
        f"{len(batches):,} batches an epoch, {batches.num_target_tokens:,} target tokens, "
        f"{batches.padding_share:.1%} padding. {model.count_params():,} parameters."
    )


def _say(line):
    print(line, file=sys.stderr, flush=True)


def _say_nothing(line):
    pass
