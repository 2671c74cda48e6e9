"""Runs of a second or two on a small copy task, trained in this process."""

from tf_transformer import cli

SETTINGS = [
    "--corpus=copy", "--num-layers=1", "--d-model=16", "--num-heads=2", "--d-ff=32",
    "--vocab-size=272", "--batch-tokens=400", "--max-length=30", "--accumulation-steps=2",
]  # fmt: skip


def train(run_dir, *options):
    assert cli.main(["train", f"--run-dir={run_dir}", *options]) == 0
