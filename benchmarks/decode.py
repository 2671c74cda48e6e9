"""Measure decoding: our SavedModel against CTranslate2 and others.

    python benchmarks/decode.py --run-dir runs/de_en --source test.de
    python benchmarks/decode.py --presets tiny --batch-sizes 1 --rounds 2

All engines have the same weights. Each runs in its own process, and they take turns; medians are
compared. The time is that of translating text to text, tokenizers included. See README.md beside
this file. The last line of the output is JSON.

A preset without a run has random weights, so its translations never end by themselves: every
engine truncates them after `--tokens` tokens.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import itertools
import json
import multiprocessing
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import engine
from sizes import PRESETS
from spread import fields, marginal_costs, ratio
from texts import read_texts

# (texts, batch size, beam size, tokens that our translations have) -> tokens
Translate = Callable[[list[str], int, int, int], int]

# How one process can use two threads: (batches at a time, threads of each batch). A single batch in
# the second way has one thread.
THREADS = ((1, 2), (2, 1))
PEERS = {  # name: script, its ways to use two threads
    "marian": ("decode_marian.py", ((2, 1),)),  # a batch has one thread
    "opennmt": ("decode_opennmt.py", ((1, 2), (1, 1))),  # crashes with two batches at a time
}
SENTENCES = {1: 24, 32: 256, 128: 512}  # batch size: sentences in one measurement
# Tokens of the translations by which costs within a search are measured, and rounds of them.
COST_LENGTHS, COST_ROUNDS = (1, *range(20, 281, 20)), 14


def main() -> None:
    options = parse()
    sentences = read_texts(options.source)
    results = {}
    for preset in options.presets:
        with tempfile.TemporaryDirectory() as folder:
            run_in_process(write_models, preset, options, sentences, folder)
            results.update(compare(preset, options, sentences, folder))
        if not options.skip_costs:
            results.update(run_in_process(costs, preset))
    print(json.dumps(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--presets", nargs="+", default=["tiny", "base"])
    parser.add_argument("--run-dir", help="a trained run, used for the preset with its sizes")
    parser.add_argument(
        "--source", help="sentences, one a line, plain or gzip; default: the phrasebook's test part"
    )
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 32, 128])
    parser.add_argument("--beam-sizes", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each translation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="share of the sentences to use")
    parser.add_argument("--skip-costs", action="store_true")
    engine.add_peers(parser, PEERS)
    return parser.parse_args()


# Models


def write_models(
    preset: str, options: argparse.Namespace, sentences: list[str], folder: str
) -> None:
    """Write SavedModels and CTranslate2 models with the same weights, in several data types."""
    import keras

    import tf_transformer as tt
    from tf_transformer.models.architectures import build_model, with_tokenizers
    from tf_transformer.runs.restore import restore_model, restore_tokenizers
    from tf_transformer.runs.run_directory import RunDirectory

    run = RunDirectory.open(options.run_dir) if options.run_dir else None
    if run and has_sizes_of(preset, run.config().model):
        model, source, target, _ = restore_model(run)
        max_length = run.config().data.max_length
    else:
        keras.utils.set_random_seed(0)
        if run:
            source, target = restore_tokenizers(run)
        else:
            source = target = tt.SentencePieceTokenizer.train(sentences, 8000)
        config = tt.preset(preset, source.vocab_size, target.vocab_size)
        model = build_model(with_tokenizers(config, source, target))
        max_length = options.tokens
    half = build_model(model.config, "bfloat16")
    half.set_weights(model.get_weights())
    kinds = (("ours", model), ("ours_bfloat16", half))
    for (name, of_precision), beam_size in itertools.product(kinds, sorted(options.beam_sizes)):
        search = tt.Search(max_length=max_length, beam_size=beam_size)
        translator = tt.Translator.from_model(of_precision, source, target, search)
        tt.export_saved_model(translator, f"{folder}/{name}", beam_size)  # the version is the beam
    for name, quantization in (("float32", None), ("int8", "int8")):
        tt.export_ctranslate2(
            model, source, target, f"{folder}/{name}", quantization=quantization,
            max_length=max_length,
        )  # fmt: skip
    (pathlib.Path(folder) / "max_length").write_text(str(max_length))
    if engine.peers(options, PEERS):
        from peer_models import write_peer_model

        write_peer_model(model, source, folder)


def has_sizes_of(preset: str, config: Any) -> bool:
    """Return whether a model has the sizes of a preset; runs do not record the preset."""
    return all(getattr(config, name) == size for name, size in PRESETS[preset].items())


# Engines: functions that open a folder and return a `Translate`


def signature(folder: str, name: str, batches: int, threads: int) -> Translate:
    """Return the signature `serving_default` of SavedModels in a session, as a server runs it."""
    import tensorflow as tf

    from tf_transformer import Translator
    from tf_transformer.machine import run_in_callers_thread

    run_in_callers_thread()
    # The signature returns strings only, so this counts their tokens, in the warm-up.
    translator = Translator.load(f"{folder}/{name}", threads=batches)

    @functools.cache
    def count(texts, *search):
        return sum(
            best.length for (best,) in translator.stream(texts, 1, *search, by_sentence=False)
        )

    # Batches share two threads between operations, or each runs in the thread that calls.
    inter_op_threads = threads if threads > 1 else -1

    @functools.cache
    def opened(beam_size):
        config = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=inter_op_threads, intra_op_parallelism_threads=1
        )
        session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        with session.graph.as_default():
            path = f"{folder}/{name}/{beam_size}"
            loaded = tf.compat.v1.saved_model.loader.load(session, ["serve"], path)
        found = loaded.signature_def["serving_default"]
        [text], [translation] = found.inputs.values(), found.outputs.values()
        return session.make_callable(translation.name, [text.name])

    def translate(texts, batch_size, beam_size, tokens):
        texts = sorted(texts, key=len)
        groups = [texts[i : i + batch_size] for i in range(0, len(texts), batch_size)]
        # Single sentences are translated one after the other.
        callers = 1 if batch_size == 1 else batches * threads
        with concurrent.futures.ThreadPoolExecutor(callers) as pool:
            translations = list(pool.map(opened(beam_size), groups))
        assert sum(map(len, translations)) == len(texts)
        return count(tuple(texts), batch_size, beam_size)

    return translate


def ctranslate2(folder: str, quantization: str, batches: int, threads: int) -> Translate:
    """Return a translator of CTranslate2 with the same tokenizers and limits."""
    import ctranslate2
    import sentencepiece

    max_length = int((pathlib.Path(folder) / "max_length").read_text())
    path = f"{folder}/{quantization}/1"
    source = sentencepiece.SentencePieceProcessor(model_file=f"{path}/source.model")
    target = sentencepiece.SentencePieceProcessor(model_file=f"{path}/target.model")
    translator = ctranslate2.Translator(path, inter_threads=batches, intra_threads=threads)

    def translate(texts, batch_size, beam_size, tokens):
        groups = [[text] for text in texts] if batch_size == 1 else [texts]
        found = 0
        for group in groups:
            results = translator.translate_batch(
                source.encode(group, out_type=str),
                max_batch_size=batch_size,
                beam_size=beam_size,
                length_penalty=0.6,
                max_input_length=max_length,
                max_decoding_length=max_length,
            )
            best = [result.hypotheses[0] for result in results]
            target.decode(best)
            found += sum(map(len, best))
        return found

    return translate


def engines() -> dict[str, tuple]:
    """Return the engines by name and use of threads: (function, its arguments after the folder).

    The first is `ours`, whose translations have as many tokens as the others should have.
    """
    kinds: dict[str, tuple] = {
        "ours": (signature, "ours"),
        "ours_bfloat16": (signature, "ours_bfloat16"),
        "ctranslate2": (ctranslate2, "float32"),
        "ctranslate2_int8": (ctranslate2, "int8"),
    }
    return {
        f"{name} {batches}x{threads}": (*kind, batches, threads)
        for name, kind in kinds.items()
        for batches, threads in THREADS
    }


def timed(function: Callable[..., Translate], *arguments: Any) -> Callable:
    """Open an engine; return a function that runs a job and returns its tokens and seconds."""
    return engine.timed(function(*arguments))


def compare(
    preset: str, options: argparse.Namespace, sentences: list[str], folder: str
) -> dict[str, Any]:
    """Return the tokens per second of all engines for each beam size and batch size."""
    with contextlib.ExitStack() as processes:
        asked = {
            name: processes.enter_context(engine.process(timed, function, folder, *arguments))
            for name, (function, *arguments) in engines().items()
        }
        for name, python in engine.peers(options, PEERS).items():
            script, ways = PEERS[name]
            for batches, threads in ways:
                job = {"folder": folder, "sizes": PRESETS[preset]}
                job |= {"batches": batches, "threads": threads}
                peer = engine.script(python, script, job)
                asked[f"{name} {batches}x{threads}"] = processes.enter_context(peer)
        return measure(asked, preset, options, sentences, summary)


def measure(
    asked: dict[str, Callable],
    preset: str,
    options: argparse.Namespace,
    sentences: list[str],
    summary: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    """Return a `summary` for each batch size and beam size, from engines that take turns."""
    cells = {}
    for batch_size in options.batch_sizes:
        count = SENTENCES.get(batch_size, 4 * batch_size)
        # At least two batches, for engines that give each of them one thread.
        count = max(2 * batch_size, int(count * options.share / (4 if preset == "base" else 1)))
        texts = sentences[:count]
        for beam_size in options.beam_sizes:
            found = {name: [] for name in asked}
            expected = 0
            for _ in range(1 + options.rounds):  # the first warms up
                for name, translate in asked.items():
                    found[name].append(translate(texts, batch_size, beam_size, expected))
                    expected = expected or found[name][0][0]
            search = "greedy" if beam_size == 1 else f"beam{beam_size}"
            cell = f"{preset}_{search}_b{batch_size}"
            cells[cell] = summary({name: rounds[1:] for name, rounds in found.items()}, len(texts))
            figures = "  ".join(f"{key} {value}" for key, value in cells[cell].items())
            print(f"{cell:20s} {figures}", flush=True)
    return cells


def fastest(
    found: dict[str, list[tuple[int, float]]], sentences: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return each engine's speeds by its faster use of threads; and that use, and tokens."""
    best: dict[str, tuple[list[float], str, float]] = {}
    for name, rounds in found.items():
        kind, way = name.split()
        speeds = [tokens / seconds for tokens, seconds in rounds]
        this = speeds, way, rounds[0][0] / sentences
        best[kind] = max(best.get(kind, this), this, key=lambda one: statistics.median(one[0]))
    return {kind: speeds for kind, (speeds, _, _) in best.items()}, {
        "threads": {kind: way for kind, (_, way, _) in best.items()},
        "tokens": {kind: round(tokens, 1) for kind, (_, _, tokens) in best.items()},
    }


def summary(found: dict[str, list[tuple[int, float]]], sentences: int) -> dict[str, Any]:
    """Return one cell, from the tokens and seconds of all engines and rounds."""
    speeds, details = fastest(found, sentences)
    compared = {
        "ratio": ("ours", "ctranslate2"),
        "ratio_bfloat16": ("ours_bfloat16", "ctranslate2"),
        **{f"ratio_{name}": ("ours", name) for name in PEERS if name in speeds},
    }
    return {
        **{kind: round(statistics.median(of_kind)) for kind, of_kind in speeds.items()},
        **fields({n: ratio(speeds[own], speeds[peer]) for n, (own, peer) in compared.items()}),
        **details,
    }


# Costs within one search


def costs(preset: str) -> dict[str, Any]:
    """Return the processor time of token 10 and of token 250, and what the KV cache saves."""
    import numpy as np
    import tensorflow as tf

    import tf_transformer as tt
    from tf_transformer.export.folding import freeze
    from tf_transformer.machine import run_in_callers_thread
    from tf_transformer.models.architectures import build_model

    run_in_callers_thread()
    model = build_model(tt.preset(preset, 8000, 8000))
    # The end token gets an embedding of zeros, so its logit is 0. Other tokens have greater logits,
    # so no search ends early.
    embeddings = model.output_projection.embedding.embeddings
    embeddings.assign(np.where(np.arange(8000)[:, None] == 3, 0.0, embeddings.numpy()))
    exported = freeze(model, 300)
    source_ids = tf.constant(np.random.default_rng(0).integers(4, 8000, (1, 16)), tf.int32)
    special = {"pad_id": 0, "bos_id": 2, "eos_id": 3}
    ids, count = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int32)

    @tf.function(input_signature=[ids, count], autograph=False)
    def cached(source_ids, tokens):
        cache, step = exported.start_decoding(source_ids), exported.decode_step
        return tt.greedy_search(step, cache, tokens[None], **special).ids

    def next_ids(source_ids, target_ids):
        """Run the whole model for each token, as TensorFlow's tutorial does."""
        logits = model({"source_ids": source_ids, "target_ids": target_ids})
        best = tf.argmax(logits[:, -1:], axis=-1, output_type=tf.int32)
        return tf.concat([target_ids, best], axis=1)

    def uncached(source_ids, tokens):
        target_ids = tf.fill([1, 1], 2)
        for _ in range(int(tokens)):
            target_ids = next_ids(source_ids, target_ids)
        return target_ids

    @tf.function(input_signature=[ids, count], autograph=False)
    def uncached_graph(source_ids, tokens):
        return tf.while_loop(
            lambda target_ids: tf.shape(target_ids)[1] <= tokens,
            lambda target_ids: (next_ids(source_ids, target_ids),),
            [tf.fill([1, 1], 2)],
            shape_invariants=[tf.TensorShape([1, None])],
        )[0]

    def milliseconds(jobs, rounds):
        """Return the times of all (search, tokens) in each round, in random order.

        They are of the processor, because other work would add more than late tokens do.
        """
        found, random = np.zeros((1 + rounds, len(jobs))), np.random.default_rng(0)
        for of_round in found:
            for number in random.permutation(len(jobs)):
                search, tokens = jobs[number]
                started = time.process_time()
                search(source_ids, tf.constant(tokens)).numpy()
                of_round[number] = time.process_time() - started
        return 1000 * found[1:]  # the first warms up

    jobs = [(cached, length) for length in COST_LENGTHS]
    each = milliseconds(jobs, COST_ROUNDS)
    first, last, growth = marginal_costs(COST_LENGTHS, each, (10, 250))
    # The tutorial calls its model from Python, and exports the same loop as one graph.
    jobs = [(search, 64) for search in (cached, uncached, uncached_graph)]
    own, called, graph = milliseconds(jobs, 3).T
    found = {
        "cpu_ms_of_token_10": first,
        "cpu_ms_of_token_250": last,
        "ratio_250_to_10": growth,
        "uncached_to_cached": ratio(called, own),
        "uncached_graph_to_cached": ratio(graph, own),
    }
    for name, figure in found.items():
        print(f"{preset} {name}: {figure}", flush=True)
    return {f"{preset}_costs": fields(found)}


def run_in_process(function: Callable, *arguments: Any) -> Any:
    """Call a function in a new process, where TensorFlow has its own threads."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


if __name__ == "__main__":
    sys.exit(main())
