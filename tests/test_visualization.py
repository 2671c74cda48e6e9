"""`tf-transformer plot`: the curves of runs."""

import importlib.util
import json
import shutil

import pytest

from tf_transformer import cli
from tf_transformer.runs.run_directory import RunDirectory


def test_plot_draws_the_curves_of_runs(early_stopped_run, tmp_path, capfd):
    other = shutil.copytree(early_stopped_run, tmp_path / "other")
    output = tmp_path / "new" / "curves.png"
    assert cli.main(["plot", str(early_stopped_run), str(other), f"--output={output}"]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    assert capfd.readouterr() == (f"{output}\n", "")


@pytest.fixture
def run_dir(tmp_path):
    """A run with nothing but a log."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").touch()
    (run / "log.jsonl").write_text('{"step": 2, "loss": 1.0}\n', encoding="utf-8")
    return run


def refusal(capfd, *arguments):
    assert cli.main(["plot", *map(str, arguments)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    return line


def test_plot_skips_a_run_without_a_log(run_dir, tmp_path):
    without = shutil.copytree(run_dir, tmp_path / "mean")
    (without / "log.jsonl").unlink()
    output = tmp_path / "curves.svg"
    assert cli.main(["plot", str(run_dir), str(without), f"--output={output}"]) == 0
    assert output.stat().st_size > 1000


def test_plot_says_what_it_cannot_draw(run_dir, tmp_path, capfd, monkeypatch):
    assert "holds no run" in refusal(capfd, tmp_path / "nothing")
    with (run_dir / "log.jsonl").open("a") as file:
        file.write("[]\n")
    assert f"{run_dir / 'log.jsonl'}: line 2 is no line of metrics" in refusal(capfd, run_dir)
    (run_dir / "log.jsonl").unlink()
    assert "no run has a validation in its log" in refusal(capfd, run_dir)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install matplotlib" in refusal(capfd, run_dir)


def test_plot_draws_each_metric_over_the_steps(run_dir):
    from tf_transformer.visualization.history import plot_history

    lines = [{"step": s, "loss": 9.0 - s, "val_loss": 9.5 - s, "val_perplexity": 2.0 * s,
              "val_bleu": 1.0 * s, "learning_rate": 0.1 * s} for s in (2, 4)]  # fmt: skip
    (run_dir / "log.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines), "utf-8")
    drawn = {}
    for axes in plot_history([("one", RunDirectory(run_dir).log()), ("two", lines[:1])]).axes:
        drawn[axes.get_title(loc="left")] = [
            (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()
        ]
        assert all(tick == int(tick) for tick in axes.get_xticks()), "there is no half step"
    assert drawn == {
        "Loss": [([2, 4], [7.0, 5.0]), ([2, 4], [7.5, 5.5]), ([2], [7.0]), ([2], [7.5])],
        "Validation BLEU": [([2, 4], [2.0, 4.0]), ([2], [2.0])],
        "Validation perplexity": [([2, 4], [4.0, 8.0]), ([2], [4.0])],
        "Learning rate": [([2, 4], [0.2, 0.4]), ([2], [0.2])],
    }
