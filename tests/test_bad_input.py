"""Unusable files and options of commands: each gets one line, and changes nothing."""

import pathlib
import shlex

import pytest
from commands import assert_refused

from tf_transformer.commands import doctor

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
# The beginning of a command, in the folder of `bad_files`: its end, and words of the refusal.
REFUSED = {
    "train --run-dir=run": {
        "": ["--train-source, --train-target", "--corpus phrasebook"],
        "--corpus=copy --steps=5 --minutes=1": ["--steps and --minutes each"],
        "--corpus=copy --steps=many": ["steps", "'many'"],
        "--corpus=tfds:nothing_like_it": ["nothing_like_it"],
        "--corpus=copy --config=none.toml": ["none.toml", "No such file"],
        "--corpus=copy --config=run.toml --steps=3": [
            r"run.toml: \[model\] 'num_layer'", "'num_layers'"],
        "--train-tsv=one_tab": ["one_tab, line 2: 0 tabs"],
        "--train-source=two --train-target=latin1": ["latin1, line 2: not valid"],
        "--train-source=folder --train-target=two": ["folder: is a directory"],
    },
    "train --corpus=copy": {
        "--run-dir={saved}": ["demo: holds an export"],
        "--run-dir=": ["--run-dir is empty"],
        "--run-dir=dangling": ["dangling: cannot be made"],
        "--run-dir=new --data-cache=two": ["two: cannot be made, since two is no writable folder"],
        "--run-dir=new --explain --architecture=masked_lm --criterion=bleu": ["needs translations"],
    },
    "train --resume --steps=99": {
        "--run-dir=missing": ["missing: is no folder. Check", "tf-transformer train"],
        "--run-dir=folder": ["folder: holds no run", "tf-transformer train"],
    },
    "train --run-dir={run}": {"--corpus=copy": ["holds a run already", "--resume"]},
    "train --run-dir={run} --resume": {
        "--d-model=64": ["the run has --d-model 32, not 64", "--steps"],
        "--d-ff=64 --num-heads=4 --warmup-steps=9": [
            "has --num-heads 2, not 4; --warmup-steps 50, not 9"],
        "--architecture=cho": ["has --architecture transformer"],
        "'--train-source=other file'": ["--train-source '.*source', not 'other file'"],
        "--preset=tiny --num-layers=1 --d-model=32": [
            "has --num-heads 2, not 4; --d-ff 64, not 256"],
    },
    "train --corpus=copy --run-dir=new --initialize-from={run}": {
        "--d-model=64 --vocab-size=300": [
            "the run has --vocab-size 280, not 300; --d-model 32, not 64", "keeps the model and"],
        "--architecture=cho": ["has --architecture transformer"],
        "--preset=base": ["--num-layers 1, not 6", "--d-model 32, not 512"],
        "--no-joint --no-tie-embeddings": ["--joint True, not False"],
        "--user-symbols=<BT>": ["--user-symbols None, not '<BT>'"],
        "--initialize-from=nothing": ["nothing: is no folder"],
    },
    "evaluate {saved} --source=three": {
        "--reference=two": ["three has 3", r"two has 2\b"],
        "--reference=two --source=two": ["2 --source and 1 --reference"],
        "--reference=three --reference=three --source=three": ["test sets need --compare"],
        "--reference=three --compare=. --robustness": ["two models", "Omit --robustness[.]"],
        "--reference=three --compare=. --perplexity": ["no translations. Omit --compare[.]"],
        "--compare=. --suite --terms=x": ["two models .* Omit --suite, --terms[.]"],
        "--reference=latin1": ["latin1, line 2"],
        "--text=two": ["--text is read alone. Omit --source[.]"],
        "--reference=three --perplexity --batch-size=1": ["Omit --batch-size[.]"],
        "--reference=three --perplexity --robustness": ["--perplexity .* Omit --robustness[.]"],
        "--reference=three --file=x": ["references. Omit --source, --reference[.]"],
        "--reference=three --beam-size=1 --length-penalty=1": ["without a beam"],
    },
    "translate {echo}": {
        "--beam-size=999": ["beam_size must be from 1 to 280"],
        "--n-best=3": ["n_best must be from 1 to the size of the beam, 1", "--beam-size"],
        "--input=folder": ["folder: Is a directory[.]"],
        "--input=two --output=missing/out": ["missing/out: --output must be a file"],
        "--input=two --output=folder": ["folder: --output must be a file"],
        "--input=two --output=two": ["two: is the input too"],
        "--output=three --n-best=4 --overwrite": ["n_best must be"],
        "--length-penalty=1": ["--length-penalty does nothing without a beam"],
    },
    "export": {
        "missing saved": ["missing: is no folder. Check", "tf-transformer train"],
        "folder saved": ["folder: holds no run", "tf-transformer train"],
        "{saved} more": ["demo: holds no run", "is an export"],
        "{run} two/new/saved": ["two/new/saved: cannot be made, since .*two is no writable folder"],
        "{run} dangling": ["dangling: cannot be made"],
    },
    "export {run} saved": {
        "--quantization=int8": ["saved_model does not have --quantization; omit it"],
        "--format=ctranslate2 --beam-size=4": ["does not have --beam-size; omit it"],
        "--format=ctranslate2 --quantization=int9": ["'int8'"],
        "--beam-size=99999": ["from 1 to", "99999"],
        "--version=0": ["0"],
        "--overwrite": ["--overwrite replaces a version"],
    },
    "import --run-dir=new": {
        "marian missing": ["missing: is no folder"],
        "marian {fixtures}/hugging_face/shared --config=data.yml": [
            "--config names settings of OpenNMT-tf or Marian"],
        "bert {fixtures}/bert/masked '--tag=>>deu<<'": [
            "has no tag >>deu<<. The tags of its vocabulary: none"],
    },
    "import marian {fixtures}/marian/joint": {"--run-dir={run}": ["holds a run already"]},
}  # fmt: skip


def contents_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("begin", "end"), [(begin, end) for begin, ends in REFUSED.items() for end in ends]
)
def test_what_a_command_cannot_do_is_named(
    begin, end, trained_run, exported_run, echo, bad_files, capfd, monkeypatch
):
    monkeypatch.chdir(bad_files)
    monkeypatch.setattr(doctor, "diagnose", None)  # it is refused before the checks
    (bad_files / "run.toml").write_text("[model]\nnum_layer = 2\n", encoding="utf-8")
    models = {"run": trained_run[0], "saved": exported_run[0], "echo": echo, "fixtures": FIXTURES}
    folders = bad_files, trained_run[0], exported_run[0]
    before = [*map(contents_of, folders)]
    arguments = shlex.split(f"{begin} {end}".format(**models))
    assert_refused(arguments, REFUSED[begin][end], capfd, bad_files)
    assert [*map(contents_of, folders)] == before
