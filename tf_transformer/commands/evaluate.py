"""`tf-transformer evaluate`: BLEU and chrF of a model on a test set, or perplexity."""

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_transformer.commands.models import open_translator, quiet, search_errors
from tf_transformer.commands.options import MODEL, add_search_options
from tf_transformer.data.text import DataError, read_lines
from tf_transformer.errors import ConfigError
from tf_transformer.models.architectures import ARCHITECTURES, architecture_name
from tf_transformer.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from tf_transformer.evaluation import Scores

HELP = "score translations with sacreBLEU, or text by its perplexity"
DESCRIPTION = (
    "Translates a test set and scores it with BLEU and chrF. The last line is JSON. "
    "tokens_per_second counts tokens of the translations as sacreBLEU does. With --perplexity or "
    "--text a run translates nothing but reads the given sentences: perplexity is exp of the mean "
    "negative log-probability of a subword, ends of sentences included; nats_per_sentence is the "
    "mean of whole sentences, which is comparable between vocabularies."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("model", metavar=MODEL)
    parser.add_argument("--source", metavar="F", help="sentences to translate")
    parser.add_argument("--reference", metavar="F", help="their translations")
    parser.add_argument(
        "--perplexity", action="store_true", help="that of the references instead, of a run"
    )
    parser.add_argument(
        "--text", metavar="F", help="perplexity of sentences alone, of the run of a language model"
    )
    parser.add_argument(
        "--robustness",
        action="store_true",
        help="score it in capitals, without capitals, without final punctuation and with typing "
        "errors too",
    )
    add_search_options(parser)


def run(options: argparse.Namespace, started: float) -> int:
    """Translates and scores."""
    _check(options)
    if options.text or options.perplexity:
        return _perplexity(options)
    from tf_transformer.data.noise import robustness_variants
    from tf_transformer.evaluation import score

    sources = read_lines(options.source)
    references = read_lines(options.reference)
    if len(sources) != len(references):
        raise DataError(
            f"{options.source} has {len(sources):,} lines, {options.reference} has "
            f"{len(references):,}: they must translate each other line by line."
        )
    translator = open_translator(options.model, options)

    def translate(texts: list[str]) -> list[str]:
        return translator(texts, options.batch_size, options.beam_size, options.length_penalty)

    with search_errors():
        # Traces and compiles, so that the speed below is the steady one.
        translate(sources if options.xla else sources[:1])
        began = time.monotonic()
        translations = translate(sources)
        seconds = time.monotonic() - began
        scores = score(translations, references)
        variants = robustness_variants(sources) if options.robustness else {}
        noisy = {name: score(translate(texts), references) for name, texts in variants.items()}
    given = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    given = {name: value for name, value in given.items() if value is not None}
    search = {**translator.search, **given}
    print(f"BLEU {scores.bleu:.2f}   {scores.signature}")
    print(f"chrF {scores.chrf:.2f}   {scores.chrf_signature}")
    beam = f"beam of {search['beam_size']}, length penalty {search['length_penalty']:.3g}"
    print(f"Search: {'greedy' if search['beam_size'] == 1 else beam}")
    speed = {"seconds": round(seconds, 2), "tokens_per_second": round(scores.tokens / seconds, 1)}
    results = {**dataclasses.asdict(scores), **search, **speed}
    if options.robustness:
        rows = {"text as it is": scores, **noisy}
        print("\n".join(_table(rows)))
        results["robustness"] = {
            name: {"bleu": row.bleu, "chrf": row.chrf} for name, row in rows.items()
        }
    print(json.dumps(results))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raises a `ConfigError` unless the files and what is asked for go together."""
    if options.text:
        if options.source or options.reference or options.robustness or options.perplexity:
            raise ConfigError("--text is read alone: omit the options of translations.")
    elif not (options.source and options.reference):
        raise ConfigError(
            "give --source and --reference, or --text for a language model. "
            "See tf-transformer evaluate --help"
        )
    if options.perplexity and options.robustness:
        raise ConfigError("--robustness scores translations, and --perplexity makes none. Omit it.")


def _perplexity(options: argparse.Namespace) -> int:
    """Prints how probable the sentences are; those that are blank or too long are dropped."""
    from tf_transformer.data.text import TextFiles

    run = RunDirectory.open(options.model)
    config = run.config()
    architecture = architecture_name(config.model)
    if options.text and not ARCHITECTURES[architecture].trains_on_text:
        raise ConfigError(
            f"--text has no sources, which the architecture {architecture} needs. Give --source, "
            f"--reference and --perplexity."
        )
    text = TextFiles(options.source, options.text or options.reference)
    with quiet():
        from tf_transformer.runs.compile import Validation
        from tf_transformer.runs.restore import restore_model
    model, *tokenizers, _ = restore_model(run)
    validate = Validation(config, model, tokenizers, text)
    perplexity, batches = validate()["perplexity"], validate.batches
    sentences = len(text) - batches.num_too_long
    results = {
        "perplexity": perplexity,
        "nats_per_sentence": math.log(perplexity) * batches.num_target_tokens / sentences,
        "sentences": sentences,
        "tokens": batches.num_target_tokens,
        "dropped": text.num_blank + batches.num_too_long,
    }
    print(f"Perplexity {perplexity:.2f} of {sentences:,} sentences.")
    print(json.dumps(results))
    return 0


def _table(rows: dict[str, "Scores"]) -> Iterator[str]:
    """Lines of BLEU and chrF, and their differences to the first."""
    first = next(iter(rows.values()))
    width = max(map(len, rows))
    yield f"{'':{width}}    BLEU  change    chrF  change"
    for name, row in rows.items():
        bleu = f"{row.bleu:8.2f}{row.bleu - first.bleu:+8.2f}"
        chrf = f"{row.chrf:8.2f}{row.chrf - first.chrf:+8.2f}"
        yield f"{name:{width}}{bleu}{chrf}"
