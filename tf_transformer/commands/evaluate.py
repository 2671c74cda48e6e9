"""`tf-transformer evaluate`: BLEU and chrF of a model on a test set."""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_transformer.commands.models import open_translator, search_errors
from tf_transformer.commands.options import MODEL, add_search_options
from tf_transformer.data.lines import DataError, read_lines

if TYPE_CHECKING:
    from tf_transformer.evaluation import Scores

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
    parser.add_argument(
        "--robustness",
        action="store_true",
        help="score it in capitals, without capitals, without final punctuation and with typing "
        "errors too",
    )
    add_search_options(parser)


def run(options: argparse.Namespace, started: float) -> int:
    """Translates and scores."""
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
    print(f"BLEU {scores.bleu:.2f}   {scores.signature}")
    print(f"chrF {scores.chrf:.2f}   {scores.chrf_signature}")
    speed = {"seconds": round(seconds, 2), "tokens_per_second": round(scores.tokens / seconds, 1)}
    results = {**dataclasses.asdict(scores), **speed}
    if options.robustness:
        rows = {"text as it is": scores, **noisy}
        print("\n".join(_table(rows)))
        results["robustness"] = {
            name: {"bleu": row.bleu, "chrf": row.chrf} for name, row in rows.items()
        }
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
