"""Train the model of a run on pairs of texts, once with its weights and once from random weights.

The run is one that `tf-transformer import` wrote, such as a published BERT. Both trainings have the
same batches in the same order and the same schedule. The last line of the output is JSON, which is
also written to `--output`: validation loss and accuracy after each validation, and BLEU at the end.
"""

import argparse
import itertools
import json
import os
import pathlib
from typing import Any

from figures import save_lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="run directories of imported models")
    parser.add_argument("--train-tsv", required=True, help="source TAB target, one per line")
    parser.add_argument("--validation-tsv", required=True, help="the same, for validation")
    parser.add_argument("--max-length", type=int, default=64, help="most tokens of a sentence")
    parser.add_argument("--steps", type=int, default=300, help="updates of each training")
    parser.add_argument("--validations", type=int, default=6, help="validations of each training")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="its peak")
    parser.add_argument("--sentences", type=int, default=200, help="validation sentences for BLEU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="build/fine_tune.json", help="file of the results")
    parser.add_argument("--figure", help="draw the validation loss into this file")
    options = parser.parse_args()
    results = {"settings": vars(options), "trainings": {}}
    for run, kind in itertools.product(options.runs, ("published weights", "random weights")):
        found = train(run, kind == "random weights", options)
        results["trainings"][f"{pathlib.Path(run).name}, {kind}"] = found
    output = pathlib.Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if options.figure:
        lines = {name: found["val_loss"] for name, found in results["trainings"].items()}
        save_lines(lines, ("updates", "validation loss"), options.figure)
    print(json.dumps(results))


def train(path: str, from_random: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Return the curves of one training, and the BLEU of the trained model."""
    import time

    import keras

    import tf_transformer as tt
    from tf_transformer.data.text import read_tsv
    from tf_transformer.evaluation import corpus_score
    from tf_transformer.models.architectures import build_model
    from tf_transformer.runs.restore import restore_model, search_of
    from tf_transformer.runs.run_directory import RunDirectory

    keras.utils.set_random_seed(options.seed)
    run = RunDirectory.open(path)
    model, *tokenizers, _ = restore_model(run)
    if from_random:
        model = build_model(model.config)
    sizes = {"batch_tokens": options.batch_tokens, "max_length": options.max_length}
    training, validation = (
        tt.TokenBatches.from_text(read_tsv(file), *tokenizers, seed=seed, **sizes)
        for file, seed in ((options.train_tsv, options.seed), (options.validation_tsv, None))
    )
    period = options.steps // options.validations
    steps = period * options.validations
    schedule = tt.TrapezoidSchedule(options.learning_rate, steps, max(1, steps // 10))
    # The validation loss is without label smoothing, so it is a cross-entropy.
    metrics = [tt.TokenLoss(0.0, name="cross_entropy"), tt.TokenAccuracy(name="accuracy")]
    optimizer = tt.Adam(schedule, global_clipnorm=1.0)
    model.compile(optimizer, tt.SmoothedCrossEntropy(), metrics=metrics)
    held_out, began = validation.dataset(num_epochs=1), time.monotonic()
    before = model.evaluate(held_out, verbose=0, return_dict=True)
    found = model.fit(
        training.dataset(), steps_per_epoch=period, epochs=options.validations, shuffle=False,
        validation_data=held_out, verbose=2,
    ).history  # fmt: skip
    seconds = time.monotonic() - began
    held_out = read_tsv(options.validation_tsv)
    sources, targets = (side[: options.sentences] for side in (held_out.sources, held_out.targets))
    translate = tt.Translator.from_model(model, *tokenizers, search_of(run.config().data))
    translations = translate(list(sources))
    for row in itertools.islice(zip(sources, targets, translations, strict=True), 3):
        print(*row, sep="\n  ")
    # The tokenizer may lower the case, so the references are compared as it writes them.
    target = tokenizers[1]
    references = target.detokenize(target.tokenize(list(targets))).numpy()

    def curve(name: str) -> list[tuple[int, float]]:
        values = [before[name], *found[f"val_{name}"]]
        return [(period * number, value) for number, value in enumerate(values)]

    return {
        "val_loss": curve("cross_entropy"),
        "val_accuracy": curve("accuracy"),
        "bleu": corpus_score(translations, [r.decode() for r in references]).bleu,
        "parameters": model.count_params(),
        "seconds": round(seconds),
    }


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
