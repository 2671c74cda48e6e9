"""`tf-transformer export --format ctranslate2`, and the example that loads its output."""

import json
import pathlib
import re
import subprocess
import sys

import commands
import pytest
from phrase_models import MAX_LENGTH, VOCAB_SIZE, our_greedy

import tf_transformer as tt
from tf_transformer.config import DataConfig, RunConfig, TokenizerConfig
from tf_transformer.models.configs import TransformerConfig
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run_dir(phrase_model, phrase_tokenizer, tmp_path_factory):
    """A run directory with the trained model."""
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "run")
    config = RunConfig(
        data=DataConfig(corpus="phrasebook", max_length=MAX_LENGTH, fold_capitals=True),
        tokenizer=TokenizerConfig(vocab_size=VOCAB_SIZE),
        model=TransformerConfig(num_layers=1, d_model=48, num_heads=4, d_ff=96),
    )
    run.begin(config, phrase_tokenizer, phrase_tokenizer)
    Checkpoints(run.checkpoints_path).write(phrase_model, 300, {"val_bleu": 1.5})
    return run.path


@pytest.fixture(scope="module")
def exported(run_dir, tmp_path_factory):
    saved = tmp_path_factory.mktemp("saved_models") / "fast"
    done = commands.run("export", run_dir, saved, "--format=ctranslate2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(saved / "1")]
    assert done.stderr == ""
    return saved / "1"


def readme_example():
    """The lines of saved_models/README.md that translate with CTranslate2."""
    readme = pathlib.Path(__file__).parents[1] / "saved_models" / "README.md"
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text("utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "import ctranslate2" in block]
    return block


def test_the_readme_translates_as_the_saved_model_and_without_tensorflow(
    exported, run_dir, phrase_model, phrase_tokenizer, phrases, tmp_path
):
    saved = tmp_path / "slow"
    assert commands.run("export", run_dir, saved, "--beam-size=1").returncode == 0
    translate = tt.Translator.load(saved)
    # Only those that end by themselves, because the engines have different limits.
    candidates = [s.lower() for s in phrases.test.sources[:60] if "ß" not in s and s.count(" ") > 1]
    _, truncated = our_greedy(phrase_model, phrase_tokenizer.encode(candidates), phrase_tokenizer)
    lines = [line for line, cut in zip(candidates, truncated, strict=True) if not cut][:15]
    assert len(lines) == 15
    lines[::2] = map(str.upper, lines[::2])

    *setup, last = readme_example().splitlines()
    code = "\n".join(["import json, sys", "sys.modules['tensorflow'] = None", *setup])
    code = re.sub(r'"saved_models/[^"]*"', repr(str(exported)), code)
    code = re.sub(r'\["Wo ist[^\]]*\]', "json.load(sys.stdin)", code)
    code += f"\nprint(json.dumps({last}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == translate(lines)
