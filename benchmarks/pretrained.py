"""Measure an imported model: our SavedModel against transformers' generate and Marian itself.

    python benchmarks/pretrained.py --marian-python PYTHON --hugging-face-python PYTHON

The model has the sizes of a published one, and random weights, which all engines share. No engine
ends a translation before it has `--tokens` tokens. The engines take turns, and medians are
compared. See README.md beside this file. The last line of the output is JSON.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import engine
from decode import THREADS, fastest, measure, run_in_process, signature, timed
from sizes import add_size_options, sizes_of
from spread import fields, ratio
from texts import read_texts

PEERS = {  # name: script, its ways to use two threads
    "marian": ("decode_marian.py", ((2, 1),)),
    "hugging_face": ("decode_hugging_face.py", ((1, 2), (1, 1))),
}


def main() -> None:
    options = parse()
    sentences = read_texts(options.source)
    with tempfile.TemporaryDirectory() as folder:
        run_in_process(write_models, options, sentences, folder)
        print(json.dumps(compare(options, sentences, folder)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add_size_options(parser)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--source", help="sentences; default: the phrasebook's test part")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each translation")
    parser.add_argument(
        "--precision", default="float32", choices=["float32", "bfloat16"], help="of the SavedModel"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="share of the sentences to use")
    engine.add_peers(parser, PEERS)
    options = parser.parse_args()
    options.beam_sizes = [options.beam_size]
    return options


def write_models(options: argparse.Namespace, sentences: list[str], folder: str) -> None:
    """Write a model as Marian does, import it, and export it."""
    from peer_models import write_peer_model

    import tf_transformer as tt
    from tf_transformer import cli
    from tf_transformer.export.folding import freeze
    from tf_transformer.models.architectures import build_model, with_tokenizers
    from tf_transformer.runs.restore import restore_model, search_of
    from tf_transformer.runs.run_directory import RunDirectory

    (pathlib.Path(folder) / "max_length").write_text(str(options.tokens))
    tokenizer = tt.SentencePieceTokenizer.train(sentences, min(2000, options.vocab_size))
    tokenizer = tt.SentencePieceTokenizer(enlarged(tokenizer.model, options.vocab_size))
    config = tt.TransformerConfig(
        **sizes_of("base", options),
        norm_first=False,
        activation="swish",
        positions="sinusoidal_tensor2tensor",
    )
    write_peer_model(build_model(with_tokenizers(config, tokenizer, tokenizer)), tokenizer, folder)
    run_dir = f"{folder}/run"
    if cli.main(["import", "marian", folder, "--run-dir", run_dir]):
        sys.exit("the model cannot be imported.")
    run = RunDirectory(run_dir)
    search = dataclasses.replace(
        search_of(run.config().data), beam_size=options.beam_size, max_length=options.tokens,
        max_length_ratio=options.tokens, by_sentence=False,
    )  # fmt: skip
    model, *tokenizers, _ = restore_model(run)
    model = freeze(model, options.tokens, options.precision)
    translator = tt.Translator.from_model(model, *tokenizers, search)
    tt.export_saved_model(translator, f"{folder}/ours", options.beam_size)


def enlarged(model: bytes, size: int) -> bytes:
    """Return a SentencePiece model with more subwords, which no text has."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for number in range(len(proto.pieces), size):
        proto.pieces.add(piece=f"▁unused{number}", score=-1e6 - number)
    proto.trainer_spec.vocab_size = size
    return proto.SerializeToString()


def compare(options: argparse.Namespace, sentences: list[str], folder: str) -> dict[str, Any]:
    """Return the tokens per second of all engines for each batch size."""
    with contextlib.ExitStack() as processes:
        asked = {
            f"ours {batches}x{threads}": processes.enter_context(
                engine.process(timed, signature, folder, "ours", batches, threads)
            )
            for batches, threads in THREADS
        }
        for name, python in engine.peers(options, PEERS).items():
            script, ways = PEERS[name]
            for batches, threads in ways:
                job = {"folder": folder, "sizes": sizes_of("base", options)}
                job |= {"batches": batches, "threads": threads}
                peer = engine.script(python, script, job)
                asked[f"{name} {batches}x{threads}"] = processes.enter_context(peer)
        return measure(asked, "base", options, sentences, summary)


def summary(found: dict[str, list[tuple[int, float]]], sentences: int) -> dict[str, Any]:
    """Return one cell, from the tokens and seconds of all engines and rounds."""
    speeds, details = fastest(found, sentences)
    peers = [name for name in PEERS if name in speeds]
    return {
        **{kind: round(statistics.median(of_kind), 1) for kind, of_kind in speeds.items()},
        **fields({f"ratio_{name}": ratio(speeds["ours"], speeds[name]) for name in peers}),
        **details,
    }


if __name__ == "__main__":
    main()
