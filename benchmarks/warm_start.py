"""Train a prefix language model from random weights and from those of a masked language model.

UniLM (Dong et al. 2019, section 2.4) starts from BERT's weights. This script trains a masked
language model on the phrasebook, then a prefix model from its weights on the same text, and a
prefix model of the same size from random weights. All three get the same number of updates, the
same batches in the same order, and a new schedule. The last line of the output is JSON, which is
also written to `--output`.
"""

import argparse
import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from figures import save_lines
from sizes import add_size_options, given_sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3000, help="updates of each training")
    parser.add_argument("--validations", type=int, default=15, help="validations of each training")
    parser.add_argument("--pairs", type=int, default=20_000, help="phrasebook pairs to train on")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=0.003, help="its peak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="build/warm_start.json", help="file of the results")
    parser.add_argument("--figure", help="draw the validation loss into this file")
    add_size_options(parser)
    options = parser.parse_args()
    if not 1 <= options.validations <= options.steps:
        parser.error("--validations must be from 1 to --steps")
    results = compare(options)
    for name, curve in results["val_loss"].items():
        print(f"{name:18}", " ".join(f"{step}: {loss:.3f}" for step, loss in curve))
    output = pathlib.Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if options.figure:
        labels = ("updates of the prefix language model", "validation loss")
        save_lines(results["val_loss"], labels, options.figure)
    print(json.dumps(results))


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings, and the prefix model's validation losses from both initial weights."""
    import tf_transformer as tt

    corpus = tt.phrasebook(options.pairs, num_test=0)
    sentences = [*corpus.train.sources, *corpus.train.targets]
    tokenizer = tt.SentencePieceTokenizer.train(sentences, options.vocab_size)
    size = {"batch_tokens": options.batch_tokens}
    batches = [
        tt.TokenBatches.from_text(text, tokenizer, tokenizer, seed=seed, **size)
        for text, seed in ((corpus.train, options.seed), (corpus.validation, None))
    ]
    masked, _ = train("masked_lm", tokenizer, batches, options)
    _, warm = train("prefix_lm", tokenizer, batches, options, masked.get_weights())
    _, cold = train("prefix_lm", tokenizer, batches, options)
    return {
        "settings": {**vars(options), "parameters": masked.count_params()},
        "val_loss": {"from a masked model": warm, "from random weights": cold},
    }


def train(
    architecture: str,
    tokenizer: Any,
    batches: Sequence[Any],
    options: argparse.Namespace,
    weights: Sequence[Any] | None = None,
) -> tuple[Any, list[tuple[int, float]]]:
    """Return a trained model and (updates, validation loss) pairs, none for a masked model."""
    import keras

    import tf_transformer as tt
    from tf_transformer.models.architectures import build_model, with_tokenizers

    keras.utils.set_random_seed(options.seed)
    preset = tt.preset("tiny", architecture=architecture)
    config = dataclasses.replace(preset, **given_sizes(options))
    model = build_model(with_tokenizers(config, tokenizer, tokenizer))
    if weights is not None:
        model.set_weights(weights)
    period = options.steps // options.validations
    steps = period * options.validations
    schedule = tt.TrapezoidSchedule(options.learning_rate, steps, max(1, min(500, steps // 20)))
    # The validation loss is without label smoothing, so it is a cross-entropy.
    metrics = [tt.TokenLoss(0.0, name="cross_entropy")]
    model.compile(tt.Adam(schedule), tt.SmoothedCrossEntropy(), metrics=metrics)
    training, validation = batches
    data = {"steps_per_epoch": period, "epochs": options.validations, "shuffle": False}
    print(f"{architecture}, {'random' if weights is None else 'trained'} weights", flush=True)
    if architecture == "masked_lm":  # its validation would take a pass for each token
        model.fit(training.dataset(), **data, verbose=2)
        return model, []
    held_out = validation.dataset(num_epochs=1)
    before = model.evaluate(held_out, verbose=0, return_dict=True)["cross_entropy"]
    found = model.fit(training.dataset(), **data, validation_data=held_out, verbose=2).history
    losses = [before, *found["val_cross_entropy"]]
    return model, [(period * number, loss) for number, loss in enumerate(losses)]


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
