"""Import models of BERT with the answers of `transformers` beside them, and print how far ours are.

    python dev/compare_bert.py tests/fixtures/bert/*

`write_bert_fixtures.py` writes the folders, and the lines are rows of a table in
docs/pretrained.md. `interop.py` compares models of other engines.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np

from tf_transformer import cli
from tf_transformer.runs.restore import restore_model
from tf_transformer.runs.run_directory import RunDirectory


def imported(folder):
    """Return model and tokenizer of a folder that is imported."""
    with tempfile.TemporaryDirectory() as name:
        run_dir = pathlib.Path(name) / "run"
        if cli.main(["import", "bert", str(folder), "--run-dir", str(run_dir)]):
            sys.exit(f"{folder}: cannot be imported")
        return restore_model(RunDirectory(run_dir))[:2]


def rows_of(folder):
    """Yield what was compared in a folder, and the result."""
    answers = json.loads((folder / "answers.json").read_text("utf-8"))
    arrays = np.load(folder / "answers.npz")
    model, tokenizer = imported(folder)
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


def main(folders):
    """Print the rows of all folders."""
    for folder in map(pathlib.Path, folders):
        for compared, result in rows_of(folder):
            print(f"| {folder.parent.name}/{folder.name} | {compared} | {result} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
