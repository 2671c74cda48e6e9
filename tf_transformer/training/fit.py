"""What `tf-transformer train` does: from a configuration to a run directory."""

import dataclasses
import hashlib
import sys
import time

import keras
import tensorflow as tf

from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.corpus import default_vocab_size, fingerprint, load_corpus
from tf_transformer.models.presets import transformer_config
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training import callbacks
from tf_transformer.training.accumulation import GradientAccumulation
from tf_transformer.training.adam import Adam, UseAverages
from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.distribution import default_strategy
from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.metrics import Perplexity, TokenAccuracy, TokenLoss
from tf_transformer.training.progress import Progress
from tf_transformer.training.run_directory import RunDirectory, build_model
from tf_transformer.training.schedules import NoamSchedule

DEFAULT_EPOCHS = 10


def train(config, run_dir, make_translator, *, resume=False, started=None):
    """Trains a translator and leaves everything in its run directory.

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
    keras.utils.set_random_seed(config.training.seed)
    if config.training.deterministic:
        tf.config.experimental.enable_op_determinism()

    corpus = load_corpus(config.data)
    if resume:
        source_tokenizer, target_tokenizer = run.tokenizers()
    else:
        config = _with_vocab_size(config)
        _say(
            f"Training a tokenizer of {config.tokenizer.vocab_size:,} pieces "
            f"on {len(corpus.train):,} sentence pairs."
        )
        source_tokenizer, target_tokenizer = _train_tokenizers(config.tokenizer, corpus.train)
    batches, validation = (
        TokenBatches.from_text(
            text,
            source_tokenizer,
            target_tokenizer,
            batch_tokens=config.data.batch_tokens,
            max_length=config.data.max_length,
            seed=seed,
        )
        for text, seed in ((corpus.train, config.training.seed), (corpus.validation, None))
    )
    with default_strategy().scope():
        model = build_model(config, source_tokenizer, target_tokenizer)
        compile_model(model, config.training)
    config = _completed(config, model.config)
    made_with = _made_with(config, corpus, source_tokenizer, target_tokenizer, model)
    # A run that begins has no directory before this, so that a failed start leaves none.
    with run.lock():
        checkpoint = None
        if resume:
            checkpoint = run.checkpoints.readable(None, _say)
            if checkpoint is not None:
                checkpoint.require(made_with)
                checkpoint.restore(model)
            if config != run.config():
                run.save_config(config)
        else:
            run = RunDirectory.create(run_dir)  # another process may have been faster
            run.begin(config, source_tokenizer, target_tokenizer, corpus.test)
        _describe(corpus, batches, validation, model)
        translate = make_translator(
            model, source_tokenizer, target_tokenizer, config.data.max_length
        )
        save = callbacks.SaveCheckpoints(
            Checkpoints(run.checkpoints.directory, config.training.keep_checkpoints),
            every=config.training.checkpoint_steps,
            position=checkpoint.position if checkpoint else 0,
            made_with=made_with,
        )
        return _fit(
            config.training, run, model, batches, validation, corpus, translate, save, started
        )


def compile_model(model, config):
    """Compiles a model for training as the paper does (Vaswani et al. 2017, sections 5.3, 5.4).

    Args:
        model: a translation model with `config.d_model` and `config.pad_id`.
        config: `TrainingConfig`.
    """
    schedule = NoamSchedule(model.config.d_model, config.warmup_steps, config.learning_rate_factor)
    pad_id = model.config.pad_id
    optimizer = Adam(schedule, clip_norm=config.clip_norm, ema_momentum=config.ema_momentum)
    if config.precision == "mixed_float16":
        # Within the accumulation: a group of batches is scaled alike, or left out whole.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if config.accumulation_steps > 1:
        optimizer = GradientAccumulation(optimizer, config.accumulation_steps)
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(config.label_smoothing, pad_id),
        metrics=[
            TokenLoss(config.label_smoothing, pad_id), TokenAccuracy(pad_id), Perplexity(pad_id),
        ],
        auto_scale_loss=False,
    )  # fmt: skip
    # Keras builds it in the first step, too late for a checkpoint to give it its state.
    model.optimizer.build(model.trainable_variables)


def _fit(config, run, model, batches, validation, corpus, translate, save, started):
    step = int(model.optimizer.iterations)
    accumulation = config.accumulation_steps
    updates_in_epoch = -(-len(batches) // accumulation)
    total_steps = config.steps
    if config.epochs is not None:
        total_steps = config.epochs * updates_in_epoch
    if total_steps is not None and step >= total_steps:
        _say(f"Nothing to do: the run is at step {step:,} of {total_steps:,}.")
        return 0
    patience = _patience(config, run, step)
    if patience and patience.is_over:
        _say(
            f"Nothing to do: the last {config.patience} validations up to step {step:,} were not "
            f"better than one before."
        )
        return 0
    run.forget_log_after(step)
    interrupt = callbacks.StopOnSignal()
    limit = (
        callbacks.StepLimit(total_steps)
        if total_steps is not None
        else callbacks.TimeLimit(config.minutes, started)
    )
    tokens_per_batch = batches.num_target_tokens / len(batches)
    progress = Progress(tokens_per_batch, started, total_steps, config.minutes, accumulation)
    in_order = [
        UseAverages(),
        callbacks.StopOnNan(run.checkpoints),
        callbacks.TranslationBleu(translate, corpus.validation, num_samples=2, show=_say),
        progress,
        callbacks.RunLog(run.log_path, started),
        *([callbacks.TensorBoardLog(run.tensorboard_path)] if config.tensorboard else []),
        save,
        *([patience] if patience else []),
        limit,
        interrupt,
    ]

    def fit(batches_in_period, periods):
        # The order of the data follows from the position, so a resumed run sees what the other
        # would have.
        epoch, skip = divmod(save.position, len(batches))
        model.fit(
            batches.dataset(first_epoch=epoch, skip=skip, accumulation=accumulation),
            validation_data=validation.dataset(num_epochs=1),
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
    except callbacks.Terminated:
        save.save({})
    finally:
        interrupt.restore()
        progress.close()
    best = run.checkpoints.best()
    bleu = f", validation BLEU {best.scores['val_bleu']:.2f}" if "val_bleu" in best.scores else ""
    _say(
        f"{'Stopped' if interrupt.signal else 'Done'} at step {int(model.optimizer.iterations):,}"
        f" after {(time.monotonic() - started) / 60:.1f} minutes. Best checkpoint: step "
        f"{best.step:,}{bleu}, in {run.path}."
    )
    return interrupt.signal


def _patience(config, run, step):
    """What ends training when BLEU no longer rises, or None; it knows what is in the log."""
    if config.patience is None:
        return None
    lines = [line for line in run.log() if line["step"] <= step]
    return callbacks.Patience(
        config.patience, earlier=[line["val_bleu"] for line in lines if "val_bleu" in line]
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
        "training corpus": fingerprint(corpus.train),
        "validation corpus": fingerprint(corpus.validation),
        "source tokenizer": _digest(source_tokenizer.model),
        "target tokenizer": _digest(target_tokenizer.model),
    }


def _digest(content):
    return f"SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"


def _train_tokenizers(config, text):
    if config.joint:
        joint = SentencePieceTokenizer.train(
            [*text.sources, *text.targets], config.vocab_size, config.model_type
        )
        return joint, joint
    return tuple(
        SentencePieceTokenizer.train(side, config.vocab_size, config.model_type)
        for side in (text.sources, text.targets)
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


def _describe(corpus, batches, validation, model):
    parts = (("training", corpus.train, batches), ("validation", corpus.validation, validation))
    for name, text, part in parts:
        _say(
            f"{len(text) - part.num_too_long:,} {name} pairs of {corpus.name}; left out: "
            f"{text.num_blank:,} blank, {part.num_too_long:,} over-long."
        )
    _say(
        f"{len(batches):,} batches an epoch, {batches.num_target_tokens:,} target tokens, "
        f"{batches.padding_share:.1%} padding. {model.count_params():,} parameters."
    )


def _say(line):
    print(line, file=sys.stderr, flush=True)
