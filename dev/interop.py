"""Train small models with Marian and OpenNMT-tf, import them, and compare theirs with ours.

    make interop
    make interop INTEROP="--name Multi30k --train-source train.de.gz --train-target train.en.gz …"

The table goes into docs/pretrained.md. Each engine runs in an environment of its own, where
`interop_peers.py` trains, translates 200 sentences and scores their references. Its files stay in
`--folder`, so a second call compares only; remove the folder to train again.
"""

import argparse
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.evaluation import corpus_score
from tf_transformer.runs.restore import restore_model, search_of
from tf_transformer.runs.run_directory import RunDirectory

FOLDER = pathlib.Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "pretrained.md"
MARKERS = "<!-- make interop writes from here -->\n", "<!-- to here -->\n"
TIE = 1e-4
HEADER = """\
| engine, text | scores of {count} references | greedy | beam of 4 | BLEU (theirs, ours) | by beam |
|---|---|---|---|---|---|
"""


def main():
    """Compare all engines on all texts, and write the table."""
    options = parse()
    rows, notes = [], []
    for name, (train, test) in texts_of(options).items():
        text = options.folder / name
        write_text(text, train, test)
        pythons = {"marian": options.marian_python, "opennmt-tf": options.opennmt_python}
        for engine, python in pythons.items():
            folder = answered(python, engine, text, text / engine)
            rows.append(compared(f"{engine}, {name}", engine, folder))
        converted = answered(
            options.hugging_face_python, "hugging-face", text, text / "converted", text / "marian"
        )
        rows.append(compared(f"hugging-face, {name}", "marian", converted))
        notes.append(same_weights(name, text / "marian", converted))
    folder = answered(options.hugging_face_python, "tokens", text, options.folder / "tokens")
    notes.append(same_tokens(folder))
    table = HEADER.format(count=len(test)) + "".join(f"| {row} |\n" for row in rows)
    PAGE.write_text(replaced(PAGE.read_text("utf-8"), f"{table}\n" + "\n".join(notes)), "utf-8")
    print(table, *notes, sep="\n")


def parse():
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("marian", "opennmt", "hugging-face"):
        parser.add_argument(f"--{name}-python", required=True, help=f"an interpreter with {name}")
    parser.add_argument("--folder", type=pathlib.Path, default="runs/interop", help="for all files")
    parser.add_argument("--name", default="other", help="name of a text besides the phrasebook")
    for part, side in itertools.product(("train", "test"), ("source", "target")):
        parser.add_argument(f"--{part}-{side}", metavar="F", help="a file of it, plain or gzip")
    return parser.parse_args()


def texts_of(options):
    """Return the training and test pairs of each text, by name."""
    corpus = tt.phrasebook()
    texts = {"phrasebook": (corpus.train, corpus.test)}
    if options.train_source:
        texts[options.name] = (
            tt.read_parallel(options.train_source, options.train_target),
            tt.read_parallel(options.test_source, options.test_target),
        )
    return {name: (train, list(test)[:200]) for name, (train, test) in texts.items()}


def write_text(folder, train, test):
    """Write the files that a peer reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", train), ("test", test)):
        for side, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{side}").write_text(text, encoding="utf-8")


def answered(python, engine, *paths):
    """Let a peer write its model and its answers, unless it has; return the folder."""
    folder = paths[1]
    if not (folder / "answers.json").exists():
        print(f"{folder}: {engine} is at work.", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, FOLDER / "interop_peers.py", engine, *paths], check=True)
    return folder


def opened(folder, engine):
    """Import a model; return it, its tokenizers and its answers."""
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)  # another version may have imported it
    if cli.main(["import", engine, str(folder), f"--run-dir={run_dir}"]):
        sys.exit(f"{folder}: cannot be imported.")
    answers = json.loads((folder / "answers.json").read_text("utf-8"))
    return RunDirectory(run_dir), *restore_model(RunDirectory(run_dir))[:3], answers


def compared(name, engine, folder):
    """Return the cells of a row: theirs beside ours."""
    run, *model, answers = opened(folder, engine)
    translator = tt.Translator.from_model(*model, search_of(run.config().data))
    sources, targets = answers["sources"], answers["targets"]

    def log_probs(texts):
        return np.array([scored.log_prob for scored in translator.score(sources, texts)])

    cells = [f"differ by {np.abs(log_probs(targets) - answers['scores']).max():.1e}"]
    bleu = []
    for search, beam_size in (("greedy", 1), ("beam", 4)):
        # OpenNMT-tf writes an unknown subword as text; here it becomes none.
        theirs = [text.replace("<unk>", "").strip() for text in answers[search]]
        found = [n[0] for n in translator.n_best(sources, 1, beam_size=beam_size, length_penalty=0)]
        ours = [best.text for best in found]
        ends = np.array([not best.truncated for best in found])
        differs = ends & (np.array(ours, object) != np.array(theirs, object))
        more = (log_probs(theirs) - log_probs(ours))[differs]
        cell = f"{(ends & ~differs).sum()} of {ends.sum()}"
        if differs.any():
            counts = {
                "a tie": np.abs(more) <= TIE, "theirs better": more > TIE, "ours": more < -TIE
            }  # fmt: skip
            cell += f" ({', '.join(f'{x.sum()} {what}' for what, x in counts.items() if x.any())})"
        cells.append(cell)
        bleu.append(
            f"{corpus_score(theirs, targets).bleu:.2f}, {corpus_score(ours, targets).bleu:.2f}"
        )
    return " | ".join([name, *cells, *bleu])


def same_weights(name, marian, converted):
    """Compare the two imports of one model: from Marian's file, and through Hugging Face's."""
    weights = [
        {weight.path: weight.numpy() for weight in opened(folder, "marian")[1].weights}
        for folder in (marian, converted)
    ]
    same = [
        np.array_equal(array.astype("float16").astype("float32"), weights[1][path])
        for path, array in weights[0].items()
    ]
    return (
        f"- {name}: {sum(same)} of {len(same)} weights in Hugging Face's form are those of "
        f"Marian's form, rounded to half precision."
    )


def same_tokens(folder):
    """Compare token ids with those of MarianTokenizer."""
    *_, source, target, answers = opened(folder, "marian")
    lines, counts = answers["lines"], []
    for tokenizer, theirs in ((source, answers["source_ids"]), (target, answers["target_ids"])):
        ours = [[*row, tokenizer.eos_id] for row in tokenizer.encode(lines)]
        counts.append(sum(a == b for a, b in zip(ours, theirs, strict=True)))
    return (
        f"- Of {len(lines):,} lines, the ids of {counts[0]:,} as sources and of {counts[1]:,} as "
        f"targets are those of `MarianTokenizer`."
    )


def replaced(page, text):
    """Return a page with another text between the markers."""
    start, end = map(re.escape, MARKERS)
    return re.sub(f"(?s)(?<={start}).*(?={end})", lambda _: f"\n{text}\n\n", page)


if __name__ == "__main__":
    main()
