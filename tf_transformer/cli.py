"""The command line: `tf-transformer train | average | plot | evaluate | export | translate`."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import signal
import sys
import tempfile
import threading
import time

from tf_transformer.config import (
    ConfigError,
    InputError,
    ModelConfig,
    RunConfig,
    TrainingConfig,
    flag,
    read_toml,
)
from tf_transformer.data.parallel import DataError, read_lines
from tf_transformer.options import parser, settings
from tf_transformer.training.new_run import require_new
from tf_transformer.translation import translate_lines


def main(arguments=None):
    """Runs a command.

    Args:
        arguments: list of str, or None for those of the process.

    Returns:
        the exit status: 0, 2 for bad input, 130 after Ctrl-C, 143 after SIGTERM.
    """
    options = _parser().parse_args(arguments)
    started = time.monotonic()
    try:
        with _interruptible():
            return options.command(options, started)
    except InputError as error:
        print(f"tf-transformer: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep Python from flushing into the void.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"tf-transformer: {where}{error.strerror or error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tf-transformer: interrupted.", file=sys.stderr)
        return 130


@contextlib.contextmanager
def _interruptible():
    """Ctrl-C is a KeyboardInterrupt, also where a library makes another exception of it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # it is ignored, as a shell does for what runs in the background, or is another's
        return
    interrupts = []

    def interrupt(number, frame):
        interrupts.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if interrupts:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _train(options, started):
    config = None
    if not options.resume:
        require_new(options.run_dir)  # whoever repeats a command hears of --resume first
        tables = read_toml(options.config) if options.config else {}
        where = options.config or "command line"
        config = RunConfig.from_dict(_merged(tables, _given(options)), where)
    with _quiet():
        from tf_transformer.export.translator import Translator
        from tf_transformer.training.fit import train
        from tf_transformer.training.run_directory import RunDirectory
    if options.resume:
        config = _resumed_config(options, RunDirectory.open(options.run_dir).config())
    stopped_by = train(
        config, options.run_dir, Translator.from_model, resume=options.resume, started=started
    )
    return 128 + stopped_by if stopped_by else 0


def _average(options, _):
    with _quiet():
        from tf_transformer.training.averaging import average_checkpoints
    steps = average_checkpoints(options.run_dir, options.output_dir, options.last)
    print(f"{options.output_dir}: the mean of steps {', '.join(map(str, steps))}.")
    print(f"Next: tf-transformer export {options.output_dir} saved_models/NAME")
    return 0


def _plot(options, _):
    from tf_transformer.plot import plot, require_matplotlib

    require_matplotlib()  # before TensorFlow, which takes its time
    with _quiet():
        from tf_transformer.training.run_directory import RunDirectory
    plot([(path, RunDirectory.open(path).log()) for path in options.run_dirs], options.output)
    print(options.output)
    return 0


def _evaluate(options, _):
    from tf_transformer.evaluation import score

    sources = read_lines(options.source)
    references = read_lines(options.reference)
    if len(sources) != len(references):
        raise DataError(
            f"{options.source} has {len(sources):,} lines, {options.reference} has "
            f"{len(references):,}: they must translate each other line by line."
        )
    translator = _open_translator(options.model, options)

    def translate(texts):
        return translator(texts, options.batch_size, options.beam_size, options.length_penalty)

    with _search_errors():
        # Traces and compiles, so that the speed below is the steady one.
        translate(sources if options.xla else sources[:1])
        started = time.monotonic()
        translations = translate(sources)
    seconds = time.monotonic() - started
    scores = score(translations, references)
    print(f"BLEU {scores.bleu:.2f}   {scores.signature}")
    print(f"chrF {scores.chrf:.2f}   {scores.chrf_signature}")
    figures = {
        **dataclasses.asdict(scores),
        "seconds": round(seconds, 2),
        "tokens_per_second": round(scores.tokens / seconds, 1),
    }
    print(json.dumps(figures))
    return 0


def _export(options, _):
    if options.quantization and options.format != "ctranslate2":
        raise ConfigError("--quantization needs --format ctranslate2; a SavedModel: --precision.")
    if options.precision and options.format == "ctranslate2":
        raise ConfigError(
            "--precision is a SavedModel's; for --format ctranslate2: --quantization."
        )
    given = [name for name in ("beam_size", "length_penalty") if getattr(options, name) is not None]
    if given and options.format == "ctranslate2":
        named = " and ".join(map(flag, given))
        raise ConfigError(f"CTranslate2 is told the beam when it translates; leave out {named}.")
    precision = options.precision or "float32"
    with _quiet():
        from tf_transformer.training.run_directory import RunDirectory
    run = RunDirectory.open(options.run_dir)
    trained = run.load_model(precision)
    checkpoint = trained.checkpoint
    packages = ("tf_transformer", "tensorflow", "keras", "tensorflow-text", "sentencepiece")
    manifest = {
        "config": run.config().to_dict(),
        "step": checkpoint.step,
        "scores": checkpoint.scores,
        "precision": options.quantization or precision,
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    print(_EXPORTS[options.format](trained, run.config().data.max_length, manifest, options))
    return 0


def _export_saved_model(trained, max_length, manifest, options):
    from tf_transformer.export.translator import Translator

    search = {"beam_size": options.beam_size, "alpha": options.length_penalty}
    with _search_errors():
        translator = Translator.from_model(
            trained.model,
            trained.source_tokenizer,
            trained.target_tokenizer,
            max_length,
            **{name: value for name, value in search.items() if value is not None},
        )
    return translator.save(options.saved_model, options.version, manifest, options.overwrite)


def _export_ctranslate2(trained, max_length, manifest, options):
    from tf_transformer.export.ctranslate2 import write_ctranslate2

    return write_ctranslate2(
        trained.model,
        trained.source_tokenizer,
        trained.target_tokenizer,
        options.saved_model,
        options.version,
        manifest,
        options.overwrite,
        options.quantization,
        max_length,
    )


_EXPORTS = {"saved_model": _export_saved_model, "ctranslate2": _export_ctranslate2}


def _translate(options, _):
    translator = _open_translator(options.model, options)
    n_best = options.n_best or 1

    def translate(lines):
        return translator.stream(
            lines, n_best, options.batch_size, options.beam_size, options.length_penalty
        )

    with _search_errors():
        translate_lines(translate, options.input, options.output, n_best, options.resume)
    return 0


@contextlib.contextmanager
def _search_errors():
    """Sizes that the model refuses were given as options."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from None


def _open_translator(path, options):
    """The translator in a run directory (its best checkpoint) or in a SavedModel."""
    with _quiet():
        from tf_transformer.export.translator import Translator, run_in_callers_thread
        from tf_transformer.training.run_directory import RunDirectory
    run_in_callers_thread()
    if RunDirectory.is_run(path):
        run = RunDirectory.open(path)
        trained = run.load_model()
        return Translator.from_model(
            trained.model,
            trained.source_tokenizer,
            trained.target_tokenizer,
            run.config().data.max_length,
            xla=options.xla,
            threads=options.threads,
        )
    return Translator.load(path, xla=options.xla, threads=options.threads)


def _given(options):
    """The settings on the command line, as tables like those of run.toml."""
    tables = {}
    for section, field in settings():
        if hasattr(options, field.name):
            tables.setdefault(section, {})[field.name] = getattr(options, field.name)
    return tables


def _merged(tables, given):
    """`tables` with the settings in `given`, which win."""
    merged = {
        name: dict(table) if isinstance(table, dict) else table for name, table in tables.items()
    }
    if "preset" in given.get("model", {}) and isinstance(merged.get("model"), dict):
        # A preset on the command line replaces the sizes in the file, which had another's.
        merged["model"] = {
            key: value for key, value in merged["model"].items() if key not in ModelConfig.SIZES
        }
    for name, table in given.items():
        section = merged.setdefault(name, {})
        if not isinstance(section, dict):
            continue  # `RunConfig.from_dict` says that it must be a table
        if set(TrainingConfig.LENGTHS) & set(table):
            # A length on the command line replaces the length in the file, whatever its unit.
            section = merged[name] = {
                key: value for key, value in section.items() if key not in TrainingConfig.LENGTHS
            }
        section.update(table)
    return merged


def _resumed_config(options, config):
    given = _given(options)
    may_change = (*TrainingConfig.LENGTHS, "devices", "data_cache")
    given_items = [item for table in given.values() for item in table.items()]
    others = [item for item in given_items if item[0] not in may_change]
    if others or options.config:
        name, value = others[0] if others else ("config", None)
        named = flag(f"no_{name}" if value is False else name)
        raise ConfigError(
            f"--resume goes on with the configuration in {options.run_dir}/config.toml; "
            f"leave out {named}. Only --steps, --epochs, --minutes, --devices or --data-cache may "
            f"change."
        )
    if not given:
        return config
    return RunConfig.from_dict(_merged(config.to_dict(), given), "command line")


def _parser():
    return parser(
        train=_train,
        average=_average,
        plot=_plot,
        evaluate=_evaluate,
        export=_export,
        translate=_translate,
    )


@contextlib.contextmanager
def _quiet():
    """Keeps TensorFlow's start-up notes on CPUs and CUDA, which C++ writes, from the screen.

    What was written is shown after all if something fails.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        except Exception:
            notes.seek(0)
            os.write(screen, notes.read())
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)


if __name__ == "__main__":
    sys.exit(main())
