"""`tf-transformer evaluate`: BLEU and chrF of a model on a test set."""

import argparse
import dataclasses
import json
import time

from tf_transformer.commands.models import open_translator, search_errors
from tf_transformer.commands.options import MODEL, add_search_options
from tf_transformer.data.lines import DataError, read_lines

HELP = "score translations with sacreBLEU"
DESCRIPTION = (
    "Translates a test set and scores it with BLEU and chrF. The last line is JSON. "
    "tokens_per_second counts tokens of the translations as sacreBLEU does."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("model", metavar=MODEL)
    parser.add_argument("--source", required=True, metavar="F", help="sentences to translate")
    parser.add_argument("--reference", required=True, metavar="F", help="their translations")
    add_search_options(parser)


def run(options: argparse.Namespace, started: float) -> int:
    """Translates and scores."""
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
    print(f"BLEU {scores.bleu:.2f}   {scores.signature}")
    print(f"chrF {scores.chrf:.2f}   {scores.chrf_signature}")
    speed = {"seconds": round(seconds, 2), "tokens_per_second": round(scores.tokens / seconds, 1)}
    print(json.dumps({**dataclasses.asdict(scores), **speed}))
    return 0
