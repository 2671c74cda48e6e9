"""`tf-transformer doctor --same-as`: forms of one model pass, and another model fails."""

import json
import re

import pytest
import tensorflow as tf
from commands import assert_refused, run
from letters import MAX_LENGTH, VOCAB_SIZE, random_model

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.commands import doctor as command
from tf_transformer.config import DataConfig, RunConfig, TokenizerConfig
from tf_transformer.models.configs import TransformerConfig
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.serving.doctor import Check, compare, exported_search


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("same_as")


@pytest.fixture(scope="module")
def model(randomise):
    return random_model(randomise)


@pytest.fixture(scope="module")
def run_dir(model, letter_tokenizer, root):
    """A run directory with that model."""
    directory = RunDirectory.create(root / "run")
    sizes = TransformerConfig(num_layers=1, d_model=16, num_heads=2, d_ff=32, tie_embeddings=False)
    config = RunConfig(
        data=DataConfig(corpus="copy", max_length=MAX_LENGTH),
        tokenizer=TokenizerConfig(vocab_size=VOCAB_SIZE),
        model=sizes,
    )
    directory.begin(config, letter_tokenizer, letter_tokenizer)
    Checkpoints(directory.checkpoints_path).write(model, 1, {"val_bleu": 1.0})
    return directory.path


@pytest.fixture
def saved_model(exported_version):
    """The SavedModel of the same model."""
    return exported_version


@pytest.fixture(scope="module")
def source(sentences, root):
    """Lines so long that the limits of translations are those of the model, not of the line."""
    lines = [line for line in sentences if len(line.split()) >= 8][:20]
    assert len(lines) >= 15
    (root / "source").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return root / "source"


@pytest.fixture
def loads(monkeypatch):
    """Replaces the checks of the SavedModel, which have tests of their own."""
    monkeypatch.setattr(command, "diagnose", lambda folder: iter([Check("session", "ok", "")]))


def doctor(capfd, *arguments):
    """The exit status, and the first check of each name."""
    status = cli.main(["doctor", "--json", *map(str, arguments)])
    printed = capfd.readouterr()
    assert printed.err == ""
    (line,) = printed.out.splitlines()
    return status, {check["name"]: check for check in json.loads(line)["checks"][::-1]}


def test_a_run_translates_as_its_saved_model(saved_model, run_dir, source, loads, capfd):
    arguments = [saved_model, f"--same-as={run_dir}", f"--source={source}"]
    status, checks = doctor(capfd, *arguments, f"--reference={source}")
    assert status == 0
    assert re.match(r"0 of (1[5-9]|20) lines differ", checks["same"]["message"])
    first, second = re.findall(r"\d+\.\d\d", checks["bleu"]["message"])
    assert first == second


def small_saved_model(path, suffix, beam_size=3):
    """A SavedModel whose translation is the source and a suffix, and which says how it searches."""
    module = tf.Module()
    module.settings = {"beam_size": tf.Variable(beam_size), "length_penalty": tf.Variable(1.5)}
    module.translate = tf.function(
        lambda text: {"translation": text + suffix}, [tf.TensorSpec([None], tf.string, name="text")]
    )
    signatures = {"serving_default": module.translate}
    tf.saved_model.save(module, str(path / "1"), signatures=signatures)
    return path / "1"


@pytest.fixture
def beam(tmp_path):
    return small_saved_model(tmp_path / "beam", "")


def test_the_search_is_that_of_the_export(beam, source, loads, capfd, monkeypatch):
    assert exported_search(beam) == (3, 1.5)
    searches = []

    def translate(texts, *search):
        searches.append(search)
        return texts

    monkeypatch.setattr(command, "_other_form", lambda path: translate)
    assert doctor(capfd, beam, "--same-as=x", f"--source={source}")[0] == 0
    assert searches == [(3, 1.5)]


def test_a_run_searches_as_it_is_told(run_dir, in_memory, source):
    lines = source.read_text(encoding="utf-8").splitlines()[:5]
    expected = in_memory(lines, beam_size=3, length_penalty=1.5)
    assert expected != in_memory(lines)
    assert command._other_form(str(run_dir))(lines, 3, 1.5) == expected


def test_a_ctranslate2_export_translates_as_the_saved_model(
    model, letter_tokenizer, root, saved_model, source, loads, capfd
):
    pytest.importorskip("ctranslate2")
    manifest = {"config": {"data": {"max_length": MAX_LENGTH}}}
    tokenizers = (letter_tokenizer, letter_tokenizer)
    tt.export_ctranslate2(model, *tokenizers, root / "fast", manifest=manifest)
    lines = source.read_text(encoding="utf-8").splitlines()
    lines.insert(3, "")
    lines.insert(5, "! ".join(line.capitalize() for line in lines[6:9]))
    (root / "with_empty").write_text("\n".join(lines), encoding="utf-8")
    arguments = [saved_model, f"--same-as={root / 'fast'}", f"--source={root / 'with_empty'}"]
    status, checks = doctor(capfd, *arguments)
    assert status == 0 and checks["same"]["message"].startswith("0 of ")
    (root / "fast" / "1" / "source.model").unlink()
    status, checks = doctor(capfd, *arguments)
    assert status == 1
    assert "does not translate" in checks["same"]["message"]


def test_another_model_fails_with_its_first_lines(tmp_path, beam, source, loads, capfd):
    other = small_saved_model(tmp_path / "other", " \x1b[2J")  # would clear a terminal
    arguments = [str(beam), f"--same-as={other}", f"--source={source}"]
    assert cli.main(["doctor", *arguments]) == 1
    first, *examples, last = capfd.readouterr().out.splitlines()[1:]
    assert first.startswith("FAIL  same ")
    assert "100.00%; --max-different allows 1.00%" in first
    assert last == "1 failed."
    lines = source.read_text(encoding="utf-8").splitlines()[:3]
    for number, (line, example) in enumerate(zip(lines, examples, strict=True), start=1):
        assert f"line {number}: {line!r} gives {line!r} and " in example
        assert example.endswith(r"\x1b[2J'")
    assert cli.main(["doctor", *arguments, "--max-different=1"]) == 0


def test_a_saved_model_that_does_not_load_is_not_compared(
    saved_model, run_dir, source, capfd, monkeypatch
):
    broken = [Check("session", "FAIL", "does not load")]
    monkeypatch.setattr(command, "diagnose", lambda folder: iter(broken))
    status, checks = doctor(capfd, saved_model, f"--same-as={run_dir}", f"--source={source}")
    assert status == 1
    assert checks["same"]["status"] == "note"


@pytest.mark.slow
def test_the_command_in_processes_of_their_own(saved_model, run_dir, source):
    done = run(
        "doctor", saved_model, "--same-as", run_dir, "--source", source, "--reference", source
    )
    assert (done.returncode, done.stderr) == (0, "")
    *_, same, bleu, last = done.stdout.splitlines()
    assert same.startswith("ok    same        0 of ")
    assert bleu.startswith("ok    bleu        BLEU ")
    assert last == "Nothing failed."


# The limits


@pytest.mark.parametrize(("different", "status"), [(0, "ok"), (1, "ok"), (2, "FAIL")])
def test_one_line_in_a_hundred_may_differ(different, status):
    texts = [f"line {i}" for i in range(100)]
    others = ["another"] * different + texts[different:]
    check, *examples = compare(texts, texts, others, None)
    assert check.status == status
    assert check.message.startswith(f"{different} of 100 lines differ, {different}.00%; ")
    assert len(examples) == different


@pytest.mark.parametrize(("limit", "status"), [(100, "ok"), (0.1, "FAIL")])
def test_bleu_is_compared_where_there_are_references(limit, status):
    texts = [f"this is line number {i} of them" for i in range(10)]
    same, *_, bleu = compare(texts, texts, ["something else"] * 10, texts, 1.0, limit)
    assert (same.status, bleu.status) == ("ok", status)
    assert bleu.message.startswith("BLEU 100.00 and 0.00; ")


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--same-as=missing", "--source=two"], ["missing: no SavedModel there"]),
        (["--same-as={}", "--source=missing"], ["missing: no such file"]),
        (["--same-as={}", "--source=empty"], ["empty: the file is empty"]),
        (["--same-as={}", "--source=two", "--reference=three"], ["two has 2 ", "three has 3"]),
    ],
    ids=str,
)
def test_a_wrong_path_is_refused_at_once(
    options, words, saved_model, bad_files, capfd, monkeypatch
):
    monkeypatch.chdir(bad_files)
    monkeypatch.setattr(command, "diagnose", None)
    arguments = [option.format(saved_model) for option in options]
    assert_refused(["doctor", saved_model, *arguments], words, capfd, bad_files)
