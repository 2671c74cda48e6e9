"""Import models with the answers of their engines beside them, and print how far ours are.

    python dev/compare_imports.py tests/fixtures/marian/* tests/fixtures/opennmt_tf/*/

The folders are those that `write_marian_fixtures.py` and `write_opennmt_tf_fixtures.py` write, and
the lines are rows of the table in docs/pretrained.md. `write_marian_fixtures.py FOLDER larger`, as
the other, writes a model that has learned more.
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


def rows_of(folder):
    """Yield what was compared in a folder of an engine, and the result."""
    engine = "opennmt-tf" if (folder / "data.yml").exists() else "marian"
    answers = json.loads((folder / "answers.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as name:
        run_dir = pathlib.Path(name) / "run"
        if cli.main(["import", engine, str(folder), "--run-dir", str(run_dir)]):
            sys.exit(f"{folder}: cannot be imported")
        run = RunDirectory(run_dir)
        model, *tokenizers, _ = restore_model(run)
        translator = tt.Translator.from_model(model, *tokenizers, search_of(run.config().data))
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
        for compared, result in rows_of(folder):
            print(f"| {folder.parent.name}/{folder.name} | {compared} | {result} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
