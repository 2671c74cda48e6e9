"""`tf-transformer plot`: the curves of runs; see `test_figures` for what is drawn."""

import shutil

import pytest

from tf_transformer import cli


@pytest.fixture
def run_dir(tmp_path):
    """A run with nothing but a log."""
    run = tmp_path / "$run_$"
    run.mkdir()
    (run / "config.toml").touch()
    (run / "log.jsonl").write_text('{"step": 2, "loss": 1.0}\n', encoding="utf-8")
    return run


def error(capfd, *arguments):
    assert cli.main(["plot", *map(str, arguments)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    return line


def test_plot_draws_the_curves_of_runs_that_have_a_log(early_stopped_run, run_dir, capfd):
    without = shutil.copytree(run_dir, run_dir.parent / "mean")
    (without / "log.jsonl").unlink()
    output = run_dir.parent / "new" / "curves.png"
    runs = map(str, (early_stopped_run, run_dir, without))
    assert cli.main(["plot", *runs, f"--output={output}"]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    assert capfd.readouterr() == (f"{output}\n", "")


def test_plot_says_what_it_cannot_draw(run_dir, tmp_path, capfd):
    assert "holds no run" in error(capfd, tmp_path / "nothing")
    assert "a.xyz: must end in one of" in error(capfd, run_dir, "--output=a.xyz")
    with (run_dir / "log.jsonl").open("a") as file:
        file.write("[]\n")
    assert "line 2" in error(capfd, run_dir)
    (run_dir / "log.jsonl").unlink()
    assert "no run has a validation in its log" in error(capfd, run_dir)
