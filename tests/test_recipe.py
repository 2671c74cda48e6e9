"""The recipe fills in what nobody gave, suits it to the corpus, and says so."""

import re

import commands
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer import cli
from tf_transformer.config import RunConfig
from tf_transformer.runs import recipe
from tf_transformer.runs.recipe import Facts
from tf_transformer.runs.run_directory import RunDirectory

# The settings that the recipe chooses, each with another value.
GIVEN = {
    ("tokenizer", "vocab_size"): 777, ("data", "batch_tokens"): 777, ("data", "source_noise"): 0.25,
    ("data", "fold_capitals"): False, ("training", "learning_rate"): 0.25,
    ("training", "warmup_steps"): 777, ("training", "validation_steps"): 777,
    ("training", "criterion"): "loss", ("model", "dropout_rate"): 0.25,
    ("model", "attention_dropout_rate"): 0.25,
}  # fmt: skip
MULTI = Facts("text", 29_000, 15.0, True, 2, 0, 45.0, None, None)
COPY = {"data": {"corpus": "copy"}}


def facts():
    return st.builds(
        Facts,
        corpus=st.just("text"),
        num_pairs=st.integers(1, 10**8),
        tokens_per_pair=st.floats(2, 200),
        has_small_letters=st.booleans(),
        cores=st.integers(1, 256),
        gpus=st.integers(0, 16),
        minutes=st.none() | st.floats(0.1, 1e5),
        epochs=st.none(),
        steps=st.none(),
        criterion=st.sampled_from(["bleu", "chrf", "loss"]),
    )


def completed(tables, known):
    config = RunConfig.from_dict({**COPY, **tables})
    return recipe.with_choices(config, recipe.choose(config, known), str(known))


@given(known=facts(), max_length=st.integers(2, 2000))
def test_every_corpus_and_budget_gets_a_complete_configuration(known, max_length):
    config = completed({"data": {**COPY["data"], "max_length": max_length}}, known)
    for table, name in GIVEN:
        assert getattr(getattr(config, table), name) is not None
    assert RunConfig.from_dict(config.to_dict()) == config, "it can be written and read again"
    training = config.training
    budget = recipe.estimate_budget(
        known._replace(epochs=training.epochs), config, config.tokenizer.vocab_size,
        config.data.batch_tokens,
    )  # fmt: skip
    assert config.data.batch_tokens >= config.data.max_length
    if budget.updates > 20:
        assert training.warmup_steps < budget.updates
    assert budget.updates / training.validation_steps <= max(16, 1 + budget.minutes / 60)
    minutes_between = budget.minutes * training.validation_steps / budget.updates
    assert minutes_between < 66 or training.validation_steps == 10
    if budget.updates > 100:
        assert budget.updates / training.validation_steps >= 4


@given(known=facts(), more=st.floats(1, 1000))
def test_more_text_needs_less_regularisation_and_fewer_passes(known, more):
    other = known._replace(num_pairs=int(known.num_pairs * more))
    one, two = (completed({}, each) for each in (known, other))
    assert two.model.dropout_rate <= one.model.dropout_rate
    assert two.model.attention_dropout_rate <= one.model.attention_dropout_rate
    assert two.data.batch_tokens >= one.data.batch_tokens
    assert two.tokenizer.vocab_size >= one.tokenizer.vocab_size
    longer = completed({}, known._replace(minutes=(known.minutes or 1.0) * more))
    if known.minutes is not None:
        assert longer.training.learning_rate <= one.training.learning_rate
    if known.minutes is None:
        assert two.training.epochs <= one.training.epochs


@pytest.mark.parametrize(("setting", "value"), GIVEN.items())
def test_what_is_given_is_kept_and_not_noted(setting, value):
    table, name = setting
    config = completed({table: {**COPY.get(table, {}), name: value}}, MULTI)
    assert getattr(getattr(config, table), name) == value
    assert f"{table}.{name}" not in config.chosen
    assert len(config.chosen) == len(GIVEN), "the other choices, and what they are for"


@pytest.mark.parametrize("schedule", ["trapezoid", "noam"])
def test_what_depends_on_the_updates_is_chosen_by_their_number(schedule):
    config = completed({"training": {"schedule": schedule, "minutes": 45.0}}, MULTI)
    guess = config.training
    measured = recipe.choose_by_updates(config, 2_000).training
    assert measured.validation_steps == round(2_000 / 15) < guess.validation_steps
    names = ("warmup_steps", "learning_rate")
    same = [getattr(measured, name) == getattr(guess, name) for name in names]
    # Noam's schedule has been made of these before.
    assert same == [schedule == "noam"] * 2
    given = completed({"training": {"warmup_steps": 7, "minutes": 45.0}}, MULTI)
    assert recipe.choose_by_updates(given, 2_000).training.warmup_steps == 7


@pytest.mark.parametrize(
    ("updates", "peak"), [(100, 3e-3), (4000, 3e-3), (8000, 2.38e-3), (13_500, 2e-3), (10**6, 2e-3)]
)
def test_the_peak_is_what_was_tried_with_so_many_updates(updates, peak):
    config = completed({}, MULTI._replace(minutes=None, steps=updates))
    assert config.training.learning_rate == peak


@pytest.mark.parametrize(
    ("tables", "num_pairs", "reason"),
    [
        ({}, 29_000, "so that small letters"),
        ({}, 500, "none, since it is for 2,000 to"),
        ({}, 10**6, "none, since it is for 2,000 to"),
        ({"data": {**COPY["data"], "data_cache": "caches"}}, 29_000, "none, since .* cache"),
        ({"data": {"train_text": "a"}, "model": {"architecture": "causal_lm"}},
         29_000, "there are no sources"),
    ],
)  # fmt: skip
def test_noise_is_for_some_texts_and_the_reason_says_which(tables, num_pairs, reason):
    config = RunConfig.from_dict({**COPY, **tables})
    value, found = recipe.choose(config, MULTI._replace(num_pairs=num_pairs))["data.source_noise"]
    assert re.match(reason, found)
    assert (value > 0) == reason.startswith("so that")


def test_nothing_is_chosen_where_all_is_given(tmp_path, capfd):
    config = completed({"training": {"minutes": 45.0, "label_smoothing": 0.2}}, MULTI)
    assert recipe.choose(config, MULTI) == {}
    assert recipe.with_choices(config, {}, "nothing") == config
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), "utf-8")
    options = ["train", f"--run-dir={tmp_path / 'run'}", f"--config={path}", "--explain"]
    assert cli.main(options) == 0
    assert "was chosen:" in capfd.readouterr().out.splitlines()[0], "a repetition"
    assert cli.main([*options, "--preset=base"]) == 0, "another run, for which is chosen anew"
    printed = capfd.readouterr().out
    assert "learning_rate           0.00075" in printed and "label_smoothing" not in printed


def test_a_length_is_chosen_only_where_none_is_given():
    assert completed({}, MULTI).training.epochs is None
    assert completed({}, MULTI._replace(minutes=None)).training.epochs == 41
    tables = {"training": {"steps": 7}}
    assert completed(tables, MULTI._replace(minutes=None, steps=7)).training.epochs is None


@pytest.mark.parametrize(("num_pairs", "least_updates"), [(50, 100), (500, 400), (3000, 1500)])
def test_little_text_is_trained_for_many_updates_and_validated_now_and_then(
    num_pairs, least_updates
):
    known = MULTI._replace(num_pairs=num_pairs, minutes=None)
    config = completed({}, known)
    budget = recipe.estimate_budget(
        known._replace(epochs=config.training.epochs), config, config.tokenizer.vocab_size,
        config.data.batch_tokens,
    )  # fmt: skip
    assert budget.updates >= least_updates
    assert config.training.warmup_steps <= budget.updates / 5
    assert 10 <= config.training.validation_steps <= budget.updates / 4


@pytest.mark.parametrize(
    ("preset", "cores", "batch_tokens", "tokens_per_second"),
    [
        ("tiny", 1, 1024, 3840),
        ("tiny", 2, 1024, 4870),
        ("tiny", 2, 4096, 7866),
        ("base", 2, 4096, 584),
    ],
)
def test_the_estimate_of_a_budget_is_that_of_measured_runs(
    preset, cores, batch_tokens, tokens_per_second
):
    config = RunConfig.from_dict({**COPY, "model": {"preset": preset}})
    known = MULTI._replace(cores=cores)
    budget = recipe.estimate_budget(known, config, 8000, batch_tokens)
    assert 0.75 < budget.updates * 0.95 * batch_tokens / (45 * 60 * tokens_per_second) < 1.25
    four = RunConfig.from_dict({**config.to_dict(), "training": {"accumulation_steps": 4}})
    of_four = recipe.estimate_budget(known, four, 8000, batch_tokens).updates
    assert budget.updates == pytest.approx(4 * of_four, 0.01)
    of_updates = known._replace(minutes=None, steps=budget.updates)
    minutes = recipe.estimate_budget(of_updates, config, 8000, batch_tokens).minutes
    assert minutes == pytest.approx(45, 0.01), "and back"


def test_a_model_without_a_setting_gets_the_others():
    chosen = recipe.choose(
        RunConfig.from_dict({**COPY, "model": {"architecture": "sutskever"}}), MULTI
    )
    missing = {("model", "attention_dropout_rate")}
    assert {tuple(setting.split(".")) for setting in chosen} == set(GIVEN) - missing


@pytest.mark.parametrize(
    ("devices", "visible", "gpus"),
    [("2", None, 2), ("cpu", "0,1", 0), ("gpu:0,gpu:3", None, 2), (None, "", 0), (None, "-1", 0),
     (None, "0,2", 2)],
)  # fmt: skip
def test_gpus_are_counted_without_tensorflow(monkeypatch, devices, visible, gpus):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert recipe.gpus_by_driver(devices) == gpus


def test_facts_are_written_with_their_nouns():
    known = MULTI._replace(cores=1, minutes=None, steps=2_000_000)
    assert str(known) == "29,000 pairs, 2,000,000 updates, 1 core"
    assert str(MULTI._replace(gpus=1, minutes=1.5)) == "29,000 pairs, 1.5 minutes, 1 GPU"


def test_choices_that_were_made_are_explained_too():
    to_make = recipe.explain(RunConfig.from_dict(COPY), MULTI).splitlines()
    made = recipe.explain(completed({}, MULTI), MULTI._replace(cores=64)).splitlines()
    assert made[0] == f"For {MULTI} was chosen:"
    assert made[1:] == to_make[1:]


def test_explain_prints_the_choices_and_trains_nothing(copy_files, tmp_path, capfd):
    run_dir = tmp_path / "run"
    options = [*commands.files(copy_files), f"--run-dir={run_dir}", "--minutes=45", "--explain"]
    assert cli.main(["train", *options, "--warmup-steps=77"]) == 0
    printed = capfd.readouterr().out
    assert "45 minutes" in printed.splitlines()[0]
    *lines, last = printed.splitlines()[1:]
    assert last.startswith("The size of the model is not chosen: d_model is 128")
    names = [line.split()[0] for line in lines]
    assert set(names) == {name for _, name in GIVEN} - {"warmup_steps"}
    assert not run_dir.exists()


def test_a_run_writes_what_was_chosen(trained_run):
    config = RunDirectory(trained_run[0]).config()
    assert "pairs" in config.chosen["for"] and "steps" not in config.chosen
    for table, name in GIVEN:
        assert getattr(getattr(config, table), name) is not None
    assert "training.learning_rate" in config.chosen
    assert "training.warmup_steps" not in config.chosen, "it was given"
