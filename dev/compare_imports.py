"""Import models with the answers of their engines beside them, and print how far ours are.

    python dev/compare_imports.py tests/fixtures/marian/* tests/fixtures/opennmt_tf/*/
    python dev/compare_imports.py tests/fixtures/bert/*

The folders are those that `dev/write_*_fixtures.py` write, and the lines are rows of the tables in
docs/pretrained.md. `write_marian_fixtures.py FOLDER larger`, as that of OpenNMT-tf, writes a model
that has learned more, and `write_bert_fixtures.py FOLDER PUBLISHED` a published model.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.evaluation import score
from tf_transformer.runs.restore import restore_model, search_of
from tf_transformer.runs.run_directory import RunDirectory


def imported(kind, folder):
    """Return model, tokenizers and settings of the data of a folder that is imported."""
    with tempfile.TemporaryDirectory() as name:
        run_dir = pathlib.Path(name) / "run"
        if cli.main(["import", kind, str(folder), "--run-dir", str(run_dir)]):
            sys.exit(f"{folder}: cannot be imported")
        run = RunDirectory(run_dir)
        return *restore_model(run)[:3], run.config().data


def rows_of_bert(folder):
    """Yield what was compared in a folder of BERT's, and the result."""
    answers = json.loads((folder / "answers.json").read_text("utf-8"))
    arrays = np.load(folder / "answers.npz")
    model, tokenizer, _, _ = imported("bert", folder)
    ids = np.array(answers["source_ids"])
    prefix, is_real, *_ = model._embed_prefix(ids[:, 1:], ids[:, :1])
    hidden = np.asarray(model.stack(prefix, attention_mask=is_real[:, None]))
    difference = np.abs(hidden - arrays["hidden"])[is_real].max()
    largest = np.abs(arrays["hidden"]).max()
    yield "hidden states", f"differ by {difference:.1e} at most; the largest is {largest:.1f}"
    differences = []
    for number, pair in enumerate(answers["pairs"]):
        source, target = tokenizer.encode(pair)
        batch = [[*source, tokenizer.eos_id]], [[tokenizer.bos_id, *target]]
        logits = np.asarray(model(tuple(map(np.array, batch))))[0]
        differences.append(np.abs(logits - arrays[f"logits_{number}"]).max())
    yield f"logits of {len(differences)} targets", f"differ by {max(differences):.1e} at most"
    found = tokenizer.encode(answers["lines"])
    same = sum(ours == theirs for ours, theirs in zip(found, answers["ids"], strict=True))
    yield "ids of lines", f"{same} of {len(found)} identical"


def rows_of(folder):
    """Yield what was compared in a folder of an engine, and the result."""
    engine = "opennmt-tf" if (folder / "data.yml").exists() else "marian"
    answers = json.loads((folder / "answers.json").read_text("utf-8"))
    model, *tokenizers, data = imported(engine, folder)
    translator = tt.Translator.from_model(model, *tokenizers, search_of(data))
    sources, targets = answers["sources"], answers["targets"]
    ours = np.array([found.log_prob for found in translator.score(sources, targets)])
    difference = np.abs(ours - answers["scores"]).max()
    yield f"scores of {len(sources)} translations", f"differ by {difference:.1e} at most"
    for search, beam_size in (("greedy", 1), ("beam", 4)):
        found = [n[0] for n in translator.n_best(sources, 1, beam_size=beam_size, length_penalty=0)]
        pairs = [
            (best.text, theirs)
            for best, theirs in zip(found, answers[search], strict=True)
            if not best.truncated
        ]
        same = sum(ours == theirs for ours, theirs in pairs)
        bleu = [score(texts, targets).bleu for texts in ([f.text for f in found], answers[search])]
        yield (
            f"{search} translations that end within our limit",
            f"{same} of {len(pairs)} identical; BLEU {bleu[0]:.2f}, theirs {bleu[1]:.2f}",
        )


def main(folders):
    """Print the rows of all folders."""
    for folder in map(pathlib.Path, folders):
        rows = rows_of_bert if (folder / "vocab.txt").is_file() else rows_of
        for compared, result in rows(folder):
            print(f"| {folder.parent.name}/{folder.name} | {compared} | {result} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
