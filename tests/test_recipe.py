"""The recipe fills in what nobody gave, suits it to the corpus, and says so."""

import subprocess
import sys

import commands
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer import cli
from tf_transformer.run_config import RunConfig
from tf_transformer.runs import recipe
from tf_transformer.runs.recipe import Facts

# The settings that the recipe chooses, each with another value.
GIVEN = {
    ("tokenizer", "vocab_size"): 777, ("data", "batch_tokens"): 777, ("data", "source_noise"): 0.25,
    ("data", "marks"): 7, ("data", "mark_practice"): 0.25,
    ("data", "fold_capitals"): False, ("data", "dotless_i"): True,
    ("training", "learning_rate"): 0.25,
    ("training", "warmup_steps"): 777, ("training", "validation_steps"): 777,
    ("training", "criterion"): "loss", ("model", "dropout_rate"): 0.25,
    ("model", "attention_dropout_rate"): 0.25, ("training", "batch_parts"): 7,
    ("training", "weight_decay"): 0.25, ("training", "clip_norm"): 0.25,
    ("training", "precision"): "mixed_float16", ("training", "xla"): True,
    ("data", "row_length"): 300, ("training", "steps_per_execution"): 7,
}  # fmt: skip
MULTI = Facts(29_000, 15.0, True, 2, 0)
TEXT = {"corpus": "text", "train_source": "a", "train_target": "b"}


def config_of(minutes=45.0, model=None, data=None, tokenizer=None, **training):
    lengths = {"minutes": minutes} if minutes else {}
    tables = {"model": model or {}, "tokenizer": tokenizer or {}, "data": {**TEXT, **(data or {})}}
    return RunConfig.from_dict({**tables, "training": {**lengths, **training}})


def completed(known=MULTI, **settings):
    config = config_of(**settings)
    return recipe.with_choices(config, recipe.choose(config, known), known.summary(config))


FACTS = st.builds(
    Facts,
    num_pairs=st.integers(1, 10**8),
    tokens_per_pair=st.floats(2, 200),
    has_small_letters=st.booleans(),
    cores=st.integers(1, 256),
    gpus=st.integers(0, 16),
    criterion=st.sampled_from(["bleu", "chrf", "loss"]),
)
MINUTES = st.none() | st.floats(0.1, 1e5)


@given(known=FACTS, minutes=MINUTES, max_length=st.integers(2, 2000))
def test_every_corpus_and_budget_gets_a_complete_configuration(known, minutes, max_length):
    config = completed(known, minutes=minutes, data={"max_length": max_length})
    for table, name in GIVEN:
        assert getattr(getattr(config, table), name) is not None
    assert RunConfig.from_dict(config.to_dict()) == config, "it can be written and read again"
    training, budget = config.training, recipe.estimate_budget(config, known)
    assert config.data.batch_tokens >= config.data.max_length
    if budget.updates > 20:
        assert training.warmup_steps < budget.updates
    assert budget.updates / training.validation_steps <= max(16, 1 + budget.minutes / 60)
    minutes_between = budget.minutes * training.validation_steps / budget.updates
    assert minutes_between < 66 or training.validation_steps == 10
    if budget.updates > 100:
        assert budget.updates / training.validation_steps >= 4


@given(known=FACTS, minutes=MINUTES, more=st.floats(1, 1000))
def test_more_text_needs_less_regularisation_and_fewer_passes(known, minutes, more):
    other = known._replace(num_pairs=int(known.num_pairs * more))
    one, two = (completed(each, minutes=minutes) for each in (known, other))
    assert two.model.dropout_rate <= one.model.dropout_rate
    assert two.model.attention_dropout_rate <= one.model.attention_dropout_rate
    assert two.training.weight_decay <= one.training.weight_decay
    assert two.data.batch_tokens >= one.data.batch_tokens
    assert two.tokenizer.vocab_size >= one.tokenizer.vocab_size
    if minutes is None:
        passes = [each.training.epochs or 0 for each in (one, two)]  # 0: so many updates instead
        assert passes[1] <= passes[0]
    else:
        longer = completed(known, minutes=minutes * more)
        assert longer.training.learning_rate <= one.training.learning_rate


@pytest.mark.parametrize(("setting", "value"), GIVEN.items())
def test_what_is_given_is_kept_and_not_noted(setting, value):
    table, name = setting
    config = completed(**({table: {name: value}} if table != "training" else {name: value}))
    assert getattr(getattr(config, table), name) == value
    chosen = {tuple(setting.split(".")) for setting in config.chosen if setting != "for"}
    assert chosen == set(GIVEN) - {setting}


@pytest.mark.parametrize("schedule", ["trapezoid", "noam"])
def test_what_depends_on_the_updates_is_chosen_by_their_number(schedule):
    config = completed(schedule=schedule)
    guess, measured = config.training, recipe.choose_by_updates(config, 2_000).training
    assert measured.validation_steps == round(2_000 / 15) < guess.validation_steps
    names = ("warmup_steps", "learning_rate")
    same = [getattr(measured, name) == getattr(guess, name) for name in names]
    # Noam's schedule has been made of these before.
    assert same == [schedule == "noam"] * 2
    given = completed(warmup_steps=7)
    assert recipe.choose_by_updates(given, 2_000).training.warmup_steps == 7


@pytest.mark.parametrize(
    ("preset", "pairs", "gpus", "bfloat16", "expected"),
    [
        ("base", 10**7, 8, True, [262_144, 256, "mixed_bfloat16", True, 1.0, 10, 1]),
        ("big", 10**7, 1, True, [16_384, 256, "mixed_bfloat16", True, 1.0, 10, 1]),
        ("base", 10**7, 1, False, [32_768, 256, "float32", True, 1.0, 10, 1]),
        ("tiny", 29_000, 1, True, [8_192, 256, "mixed_bfloat16", True, 1.0, 10, 1]),
        ("base", 10**7, 0, True, [1024, 0, "float32", False, 0.0, 1, 2]),
    ],
)
def test_gpus_get_packed_rows_bfloat16_and_xla(preset, pairs, gpus, bfloat16, expected):
    known = MULTI._replace(num_pairs=pairs, gpus=gpus, bfloat16=bfloat16)
    config = completed(known, model={"preset": preset}, minutes=600)
    data, training = config.data, config.training
    assert [
        data.batch_tokens, data.row_length, training.precision, training.xla, training.clip_norm,
        training.steps_per_execution, training.batch_parts,
    ] == expected  # fmt: skip
    assert training.validation_steps % training.steps_per_execution == 0
    assert completed(known, data={"row_length": 1000}).data.batch_tokens >= 1000
    of_pairs = completed(known, model={"architecture": "causal_lm"})
    assert of_pairs.data.row_length == data.row_length
    other = completed(known, model={"architecture": "luong"})
    assert (other.data.row_length, other.training.xla) == (0, False), "shapes vary"


def test_large_batches_get_the_rate_and_the_warm_up_of_the_paper():
    known = MULTI._replace(num_pairs=10**7, gpus=1)
    training = completed(known, model={"preset": "base"}, minutes=None, steps=100_000).training
    assert (training.learning_rate, training.warmup_steps) == (6.99e-4, 4000)
    no_length = completed(known._replace(num_pairs=10**8), model={"preset": "base"}, minutes=None)
    assert (no_length.training.steps, no_length.training.epochs) == (200_000, None)


@pytest.mark.parametrize(
    ("preset", "cores", "batch_tokens", "tokens_per_second"),
    [("tiny", 1, 1024, 4294), ("tiny", 2, 1024, 7651), ("tiny", 2, 4096, 8983),
     ("base", 2, 4096, 584)],
)  # fmt: skip
def test_the_estimate_of_a_budget_is_that_of_measured_runs(
    preset, cores, batch_tokens, tokens_per_second
):
    def budget_of(minutes=45.0, **training):
        sizes = {"data": {"batch_tokens": batch_tokens}, "tokenizer": {"vocab_size": 8000}}
        config = config_of(minutes, {"preset": preset}, **sizes, **training)
        return recipe.estimate_budget(config, MULTI._replace(cores=cores))

    updates = budget_of().updates
    assert 0.75 < updates * 0.95 * batch_tokens / (45 * 60 * tokens_per_second) < 1.25
    assert updates == pytest.approx(4 * budget_of(accumulation_steps=4).updates, 0.01)
    assert budget_of(None, steps=updates).minutes == pytest.approx(45, 0.01), "and back"


def test_explain_needs_no_tensorflow(tmp_path):
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None; "
        "from tf_transformer import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    options = ["train", "--corpus=phrasebook", f"--run-dir={tmp_path / 'run'}", "--explain"]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_explain_prints_the_choices_and_trains_nothing(copy_files, tmp_path, capfd):
    run_dir = tmp_path / "run"
    options = ["train", *commands.files(copy_files), f"--run-dir={run_dir}", "--explain"]
    assert cli.main([*options, "--minutes=45", "--warmup-steps=77"]) == 0
    first, *lines, last = capfd.readouterr().out.splitlines()
    assert "45 minutes" in first
    assert last.startswith("The size of the model is not chosen: d_model is 128")
    assert {line.split()[0] for line in lines} == {name for _, name in GIVEN} - {"warmup_steps"}
    assert not run_dir.exists()
    # The file of a run repeats it; with another setting its choices are made again.
    path = tmp_path / "config.toml"
    path.write_text(completed(data={**dict.fromkeys(TEXT), "corpus": "copy"}).to_toml(), "utf-8")
    options = ["train", f"--run-dir={run_dir}", f"--config={path}", "--explain"]
    assert cli.main(options) == 0
    assert "was chosen:" in capfd.readouterr().out.splitlines()[0]
    assert cli.main([*options, "--preset=base"]) == 0
    assert "learning_rate           0.00075" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("devices", "expected"),
    [("2", 2), ("gpu", 1), ("GPU:0, gpu:3", 2), ("gpu:0,gpu,gpu:0", 1), ("cpu:0,cpu:1", 0)],
)
def test_gpus_are_counted_from_the_devices_that_are_given(devices, expected):
    assert recipe.gpus_by_driver(devices) == expected
