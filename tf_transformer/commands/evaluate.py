"""Score translations with sacreBLEU, or text by its perplexity.

Translate a test set and score the translations with BLEU and chrF. The last line is JSON. Its
tokens_per_second counts tokens of the translations as sacreBLEU does. With --compare, two models
translate one or several test sets, and sacreBLEU's paired bootstrap tells whether their scores
differ by more than chance. With --perplexity or --text, a run scores the given sentences and
translates nothing: perplexity is exp of the mean negative log-probability of a subword, ends of
sentences included; nats_per_sentence is the mean over whole sentences, which can be compared
between vocabularies.

tf-transformer evaluate runs/de_en --source test.de --reference test.en
"""

import dataclasses
import functools
import json
import math
import time

from tf_transformer.commands.open_translator import open_translator
from tf_transformer.commands.options import MODEL, Checked, SearchOptions, argument, group, option
from tf_transformer.config_fields import flag
from tf_transformer.data.glossary import read_terms
from tf_transformer.data.lines import stream_aligned
from tf_transformer.data.text import without_blanks
from tf_transformer.data.text_files import TextFiles
from tf_transformer.data.translation_files import read_pairs
from tf_transformer.errors import ConfigError
from tf_transformer.machine import quiet
from tf_transformer.runs.run_directory import RunDirectory, warn

_OF_ONE_MODEL = ("file", "robustness", "suite", "terms")
_OF_TRANSLATIONS = (*_OF_ONE_MODEL, "compare", *SearchOptions.model_fields)
# Options, and why others have no place beside them.
_APART = {
    "text": ("is read alone", ("source", "reference", "perplexity", *_OF_TRANSLATIONS)),
    "perplexity": ("scores --reference, and makes no translations", _OF_TRANSLATIONS),
    "compare": ("scores two models on --source and --reference", _OF_ONE_MODEL),
    "file": ("has sources and references", ("source", "reference")),
}


class Options(Checked):
    """The options of `evaluate`."""

    model: str = argument(MODEL)
    source: tuple[str, ...] | None = option(
        None, "file of sentences to translate; repeat it for several test sets", "F"
    )
    reference: tuple[str, ...] | None = option(None, "file of their reference translations", "F")
    compare: str | None = option(None, "also score this model, and compare the two", MODEL)
    perplexity: bool = option(False, "compute the perplexity of the references; needs a run")
    text: str | None = option(None, "compute the perplexity of this text by a language model", "F")
    robustness: bool = option(
        False,
        "also score the sources in capitals, without capitals, without final punctuation, with "
        "typing errors, with decomposed accents, and with soft hyphens or zero-width spaces",
    )
    file: str | None = option(None, "test set of a TMX, PO or XLIFF file", "F")
    suite: bool = option(
        False,
        "also count kept placeholders and tags, terms, loops and the like, and score short texts, "
        "titles and capitals",
    )
    terms: str | None = option(None, "glossary to follow, see translate --help", "F")
    search: SearchOptions = group(SearchOptions)


def run(options: Options) -> int:
    """Score translations or text, and print the results."""
    given = options.model_fields_set | options.search.model_fields_set
    for name, (reason, others) in _APART.items():
        if name in given and (useless := [flag(other) for other in others if other in given]):
            raise ConfigError(f"{flag(name)} {reason}. Omit {', '.join(useless)}.")
    sources, references = options.source or (), options.reference or ()
    if options.file:
        text = without_blanks(read_pairs(options.file), options.file)
        print(json.dumps(_scores(options, list(text.sources), list(text.targets))))
        return 0
    if not options.text and not (sources or references):
        raise ConfigError("give --source and --reference, or --text. See evaluate --help")
    if len(sources) != len(references):
        raise ConfigError(
            f"received {len(sources)} --source and {len(references)} --reference. Give as many of "
            f"one as of the other."
        )
    if len(sources) > 1 and not options.compare:
        raise ConfigError("several test sets need --compare. Give one --source and --reference.")
    if options.text or options.perplexity:
        results = _perplexity(options)
    else:
        pairs = map(stream_aligned, sources, references)
        sets = [tuple(map(list, zip(*lines, strict=True))) for lines in pairs]
        results = _comparison(options, sets) if options.compare else _scores(options, *sets[0])
    print(json.dumps(results))
    return 0


def _comparison(options: Options, sets: list[tuple[list[str], list[str]]]) -> dict:
    """Translate test sets with two models; print and return scores and what the bootstrap says."""
    from tf_transformer.evaluation import compare

    models, given = (options.compare, options.model), options.search
    # Open both first: an error would come after minutes.
    translators = [open_translator(name, given.threads) for name in models]
    given.require_beam(*(each.search["beam_size"] for each in translators))
    search = given.batch_size, given.beam_size, given.length_penalty
    translations = [[translate(s, *search) for s, _ in sets] for translate in translators]
    results = {"first": models[0], "second": models[1], "sets": []}
    width = max(map(len, options.source))
    print(f"first: {models[0]}\nsecond: {models[1]}")
    print(f"{'':{width}}  metric   first  second  change      p")
    rows = zip(options.source, *translations, sets, strict=True)
    for path, first, second, (_, references) in rows:
        found = compare(first, second, references)
        for row in found:
            values = f"{row.first:8.2f}{row.second:8.2f}{row.second - row.first:+8.2f}"
            print(f"{path:{width}}  {row.metric:6}{values}{row.p_value:7.3f}")
        results["sets"].append({"source": path, "metrics": [row._asdict() for row in found]})
    print("p is the probability that chance alone makes such a difference.")
    return results


def _scores(options: Options, sources: list[str], references: list[str]) -> dict:
    """Translate the sources, and print and return the scores of the translations."""
    from tf_transformer.data.noise import robustness_variants
    from tf_transformer.evaluation import corpus_score

    given = options.search
    terms = read_terms(options.terms) if options.terms else {}
    translator = open_translator(options.model, given.threads, terms)
    given.require_beam(translator.search["beam_size"])
    options_of_search = given.model_dump(exclude={"threads"})
    translate = functools.partial(translator, **options_of_search)
    translate(sources[:1])  # traces, which the time below must not include
    began = time.monotonic()
    found = [best for (best,) in translator.stream(sources, **options_of_search)]
    seconds = time.monotonic() - began
    if num_cut := sum(best.source_truncated for best in found):
        warn(f"{num_cut} source(s) are longer than the model's max_length and lost the rest.")
    translations = [best.text for best in found]
    scores = corpus_score(translations, references)
    variants = robustness_variants(sources) if options.robustness else {}
    noisy = {name: corpus_score(translate(texts), references) for name, texts in variants.items()}
    search = translator.search
    search |= given.model_dump(include=set(search), exclude_none=True)
    print(f"BLEU {scores.bleu:.2f}   {scores.signature}")
    print(f"chrF {scores.chrf:.2f}   {scores.chrf_signature}")
    beam = f"beam of {search['beam_size']}, length penalty {search['length_penalty']:.3g}"
    print(f"Search: {'greedy' if search['beam_size'] == 1 else beam}")
    speed = {"seconds": round(seconds, 2), "tokens_per_second": round(scores.tokens / seconds, 1)}
    results = {**dataclasses.asdict(scores), "sources_truncated": num_cut, **search, **speed}
    if options.robustness:
        rows = {"text as it is": scores, **noisy}
        width = max(map(len, rows))
        print(f"{'':{width}}    BLEU  change    chrF  change")
        for name, row in rows.items():
            bleu = f"{row.bleu:8.2f}{row.bleu - scores.bleu:+8.2f}"
            print(f"{name:{width}}{bleu}{row.chrf:8.2f}{row.chrf - scores.chrf:+8.2f}")
        results["robustness"] = {name: row.metrics() for name, row in rows.items()}
    if options.suite:
        from tf_transformer.inference.suite import suite, table

        results["suite"] = suite(sources, found, references, terms, translator.mark_pattern)
        print(table(results["suite"]))
    return results


def _perplexity(options: Options) -> dict:
    """Print and return the perplexity of all sentences that are neither blank nor too long."""
    run = RunDirectory.open(options.model)
    config = run.config()
    if options.text and not config.model.trains_on_text:
        raise ConfigError(
            f"--text has no sources, which the architecture {config.architecture} needs. Give "
            f"--source, --reference and --perplexity."
        )
    source, reference = (paths and paths[0] for paths in (options.source, options.reference))
    text = TextFiles(source, options.text or reference)
    with quiet():
        from tf_transformer.runs.compilation import validate
        from tf_transformer.runs.data import batches_of
        from tf_transformer.runs.restore import restore_model
    model, *tokenizers, _ = restore_model(run)
    batches = batches_of(text, tokenizers, config.data)
    perplexity = validate(model, config.training, batches)["perplexity"]
    sentences = len(text) - batches.num_too_long
    print(f"Perplexity {perplexity:.2f} of {sentences:,} sentences.")
    return {
        "perplexity": perplexity,
        "nats_per_sentence": math.log(perplexity) * batches.num_target_tokens / sentences,
        "sentences": sentences,
        "tokens": batches.num_target_tokens,
        "dropped": text.num_blank + batches.num_too_long,
    }
