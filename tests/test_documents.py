"""The documents: their commands parse, their code runs, and what they link to and name exists.

`test_client.py` runs those of the section on clients in docs/serving.md.
"""

import itertools
import json
import re
import shlex
import shutil
import sys
import tomllib

import commands
import pages
import pytest
import yaml

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.errors import ConfigError
from tf_transformer.run_config import RunConfig

ROOT = pages.ROOT
# What was written of earlier code names what no longer exists.
OF_THE_PAST = [ROOT / "CHANGELOG.md", ROOT / "dev" / "LOG.md"]
OF_TODAY = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "README.md", ROOT / "saved_models" / "README.md",
]  # fmt: skip
NO_COMMAND = {"|", "<", ">", "&&", "&"}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


EACH = pytest.mark.parametrize("path", OF_TODAY, ids=name_of)


def text_of(path):
    return path.read_text(encoding="utf-8")


def without_blocks(text):
    return pages.FENCE.sub("", text)


def inline_code(text):
    return re.findall(r"`([^`\n]+)`", without_blocks(text))


def rows_of(text):
    """The rows of tables, as lists of cells; a row of dashes is left out."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|--"):
            yield [cell.strip() for cell in line.strip("| ").split("|")]


def arguments_of(line):
    """The arguments of each `tf-transformer` in a line of a shell; `…` stands for some more."""
    words = shlex.split(line, comments=True)
    starts = [index for index, word in enumerate(words) if word == "tf-transformer"]
    for start in starts:
        rest = itertools.takewhile(lambda word: word not in NO_COMMAND, words[start + 1 :])
        yield list(rest)


def commands_in_blocks(text):
    for block in pages.blocks_of(text, "", "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if "tf-transformer " in line and "│" not in line:
                yield from arguments_of(line)


def commands_inline(text):
    for code in inline_code(text):
        if code.startswith("tf-transformer ") and len(code.split()) > 2:
            yield from arguments_of(code.replace("(", "").replace(")", ""))


@pytest.fixture
def parse(capsys):
    """Returns the options of a command line, or None for --help, and why it was refused."""

    def parsed(arguments):
        try:
            return commands.options_of(*(a for a in arguments if a != "…")), ""
        except SystemExit:
            return None, capsys.readouterr().err
        except ConfigError as error:
            return None, str(error)

    return parsed


@EACH
def test_command_lines_parse(path, parse):
    in_blocks = list(commands_in_blocks(text_of(path)))
    assert len(in_blocks) >= {"README.md": 5, "docs/guide.md": 12}.get(name_of(path), 0)
    for arguments in in_blocks:
        options, error = parse(arguments)
        assert not error, f"tf-transformer {shlex.join(arguments)}: {error}"
        is_whole = not {"…", "--resume", "--config", "--initialize-from"} & set(arguments)
        if options is not None and arguments[0] == "train" and is_whole:
            options.run_config()
    for arguments in commands_inline(text_of(path)):
        _, error = parse(arguments)
        # In the middle of a sentence a command need not be complete.
        assert not error or "are required" in error, f"{shlex.join(arguments)}: {error}"


def test_options_in_the_text_exist():
    [subparsers] = [action for action in cli.make_parser()._actions if action.choices]
    helps = [parser.format_help() for parser in subparsers.choices.values()]
    known = {"--version", *re.findall(r"--[a-z][\w-]*", " ".join(helps))}
    texts = [text_of(path) for path in OF_TODAY if path.name in ("README.md", "guide.md")]
    texts += [text_of(ROOT / "docs" / "training.md")]
    # The last column is what is here; the others are of other libraries.
    texts += [row[-1] for row in rows_of(text_of(ROOT / "docs" / "coming_from.md"))]
    of_benchmarks = {"--marian-python", "--opennmt-python", "--document", "--tokens"}
    of_others = {"--index-url", "--engines", "--peak-tflops", "--quiet", *of_benchmarks}
    found = {
        option
        for text in texts
        for code in inline_code(text)
        if code.startswith("--")
        for option in re.findall(r"(?<!\S)--[a-z][\w-]*", code)
    }
    assert len(found) > 40
    assert not found - known - of_others


@EACH
def test_blocks_are_valid(path):
    text = text_of(path)
    for block in pages.blocks_of(text, "python"):
        compile(block, name_of(path), "exec")
    for block in pages.blocks_of(text, "json"):
        json.loads(block)
    for block in pages.blocks_of(text, "toml"):
        RunConfig.from_dict(tomllib.loads(block), name_of(path))
    for block in pages.blocks_of(text, "yaml"):
        yaml.safe_load(block)
    languages = {language for language, _ in pages.FENCE.findall(text)}
    assert languages <= {"", "sh", "python", "json", "toml", "yaml"}


def test_public_names_in_the_text_exist():
    found = {name for path in OF_TODAY for name in re.findall(r"\btt\.(\w+)", text_of(path))}
    assert len(found) > 30
    assert found <= set(tt.__all__)


def anchors_of(text):
    """The anchors of headings, as a code host makes them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(text), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return set(names)


@pytest.mark.parametrize("path", OF_TODAY + OF_THE_PAST, ids=name_of)
def test_links_lead_somewhere(path):
    text = re.sub(r"(?<!\[)`[^`\n]+`(?!\])", "", without_blocks(text_of(path)))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if ":" in target:
            continue  # another site
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        assert ROOT in linked.resolve().parents, target
        if anchor:
            assert anchor in anchors_of(text_of(linked)), target


@EACH
def test_files_that_are_named_exist(path):
    """Such as `tests/pages.py`, and below `tf_transformer/` such as `layers/base.py`."""
    folders = ("tf_transformer", "tests", "benchmarks", "dev")
    names = {file.name for folder in folders for file in (ROOT / folder).rglob("*.py")}
    for code in inline_code(text_of(path)):
        match = re.fullmatch(r"([\w./-]*)(?:\{([\w,]+)\})?(\w*\.(?:py|md|c|ipynb|html))", code)
        if not match or code.startswith("."):
            continue
        begin, middles, end = match.groups()
        for middle in (middles or "").split(","):
            file = f"{begin}{middle}{end}"
            places = (ROOT / file, ROOT / "tf_transformer" / file, path.parent / file)
            is_there = any(place.is_file() for place in places)
            assert is_there or ("/" not in file and file in names), file


@pytest.mark.parametrize(
    ("page", "name_column", "file_column"), [("glossary", 1, 2), ("code", 2, 1)]
)
def test_what_the_tables_name_is_in_the_files(page, name_column, file_column):
    count = 0
    for row in rows_of(text_of(ROOT / "docs" / f"{page}.md")):
        files = [
            ROOT / "tf_transformer" / file for file in re.findall("`([^`]+)`", row[file_column])
        ]
        names = re.findall("`([^`]+)`", row[name_column])
        sources = [text_of(file) for file in files]
        for name in names if files else ():
            assert any(re.search(rf"\b{re.escape(name)}\b", source) for source in sources), row
        for source in sources:
            assert any(name in source for name in names), row
        count += len(files)
    assert count > 40


# What stands before the blocks of a page, and what in them is made smaller.
PRELUDES = {
    "README.md": "import numpy as np\nsource = target = np.array([[5, 6, 3]])\n",
    "saved_models/README.md": "",
    "docs/keras.md": "",
    "docs/training.md": """
import keras
import tf_transformer as tt
from tf_transformer.training.distribution import strategy_for
corpus = tt.copy_task(num_train=40, num_validation=4)
tokenizer = tt.SentencePieceTokenizer.train(corpus.train.sources, 272)
batches = tt.TokenBatches.from_text(corpus.train, tokenizer, tokenizer, seed=0)
config = tt.TransformerConfig(272, 272, 16, num_layers=1, num_heads=2, d_ff=32)
model, optimizer = tt.Transformer(config), "adam"
""",
}
SMALLER = {
    "tt.phrasebook()": "tt.phrasebook(num_train=300, num_validation=20, num_test=20)",
    ".targets], 2000)": ".targets], 400)",
    "steps_per_epoch=len(batches), epochs=8": "steps_per_epoch=len(batches), epochs=1",
    "steps_per_epoch=len(batches), epochs=4": "steps_per_epoch=len(batches), epochs=1",
    'tt.preset("tiny", tokenizer.vocab_size, tokenizer.vocab_size)': (
        "tt.TransformerConfig(tokenizer.vocab_size, tokenizer.vocab_size, 16, num_layers=1, "
        "num_heads=2, d_ff=32)"
    ),
    "saved_models/NAME/1": "saved_models/en_de/1",
    'folder = "saved_models/en_de/1"': 'folder = "saved_models/fast/1"',
}


def smaller(text):
    for long, short in SMALLER.items():
        text = text.replace(long, short)
    return text


@pytest.mark.slow
@pytest.mark.parametrize("page", PRELUDES)
def test_python_blocks_run(page, trained_run, exported_run, tmp_path):
    shutil.copytree(exported_run[0], tmp_path / "saved_models" / "en_de")
    if page.startswith("saved_models"):
        fast = tmp_path / "saved_models" / "fast"
        commands.run_here("export", trained_run[0], fast, "--format=ctranslate2")
    blocks = pages.blocks_of(text_of(ROOT / page), "python")
    assert len(blocks) >= 2
    script = PRELUDES[page] + smaller("\n".join(blocks))
    pages.run_commands([f"{shlex.quote(sys.executable)} -c {shlex.quote(script)}"], tmp_path)


NEEDS_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.mark.slow
def test_the_guide_works_as_it_stands(tmp_path):
    small = shlex.join(["--batch-tokens=512", "--num-layers=1", "--d-model=32", "--num-heads=2"])
    found = list(pages.commands_of(smaller(text_of(ROOT / "docs" / "guide.md"))))
    found = [re.sub(r"(--epochs \d)", rf"\1 {small}", command) for command in found]
    # The page on serving has the server, and a test of exports the choice of the search.
    found = [c for c in found if not re.match("tf-transformer (doctor|serve)|curl", c)]
    found = [re.sub("^tf-transformer export .*", r"\g<0> --beam-size=1", c) for c in found]
    pages.run_commands(found, tmp_path)
    kinds = {command.split()[1] for command in found if command.startswith("tf-transformer")}
    expected = "train filter evaluate export translate"
    assert kinds == set(expected.split())
    assert (tmp_path / "curves.png").is_file() and (tmp_path / "alignment.png").is_file()
    assert len(text_of(tmp_path / "test.out").splitlines()) == 20


@pytest.mark.slow
@NEEDS_CURL
def test_the_page_on_serving_works_as_it_stands(trained_run, exported_run, copy_files, tmp_path):
    # In a folder with runs/demo and saved_models/demo, as after `make demo`.
    shutil.copytree(exported_run[0], tmp_path / "saved_models" / "demo")
    run = shutil.copytree(trained_run[0], tmp_path / "runs" / "demo")
    (run / "test").mkdir(exist_ok=True)
    for side in ("source", "target"):
        shutil.copy(copy_files / f"test.{side}", run / "test" / f"{side}.txt")
    text = text_of(ROOT / "docs" / "serving.md")
    [example] = map(json.loads, pages.blocks_of(text, "json"))
    text = re.sub(r"\n## Clients\n.*?\n## ", "\n## ", text, flags=re.DOTALL)
    # A test of exports has the choice of the search.
    text = re.sub("export runs/demo saved_models/demo", r"\g<0> --beam-size=1", text)
    found = list(pages.commands_of(text))
    answers = pages.run_commands(found, tmp_path)
    assert answers[0].keys() == example.keys()
    assert all("error" not in answer for answer in answers)
    assert len(answers) >= 5
    kinds = {command.split()[1] for command in found if command.startswith("tf-transformer")}
    assert kinds == {"doctor", "serve", "export", "evaluate"}
