"""Compare the chrF that an export expects of each translation with the chrF of a test set.

    python benchmarks/calibration.py saved_models/en_de --source test.en --reference test.de \
        --output docs/images/calibration.png

It prints ten bins of equally many sentences, from the least to the most sure, and the correlation
over sentences; the last line is JSON. --output draws the bins; it needs matplotlib.
"""

import argparse
import json
import pathlib

import numpy as np
import sacrebleu

import tf_transformer as tt

_BINS = 10


def main() -> None:
    """Translate, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="SavedModel of export")
    parser.add_argument("--source", required=True, metavar="F")
    parser.add_argument("--reference", required=True, metavar="F")
    parser.add_argument("--output", metavar="F", help="figure to write")
    options = parser.parse_args()
    sides = (pathlib.Path(path).read_text() for path in (options.source, options.reference))
    sources, references = (text.splitlines() for text in sides)
    translator = tt.Translator.load(options.model)
    found = [best for (best,) in translator.stream(sources)]
    metric = sacrebleu.CHRF()
    rows = zip(found, references, strict=True)
    real = np.array([metric.sentence_score(best.text, [text]).score for best, text in rows])
    expected = np.array([best.expected_chrf for best in found])
    bins = np.array_split(np.argsort(expected, kind="stable"), _BINS)
    points = [(float(expected[rows].mean()), float(real[rows].mean())) for rows in bins]
    print("expected   real")
    for point in points:
        print("{:8.1f}{:7.1f}".format(*point))
    results = {"sentences": len(real), "bins": points}
    results["correlation"] = round(float(np.corrcoef(expected, real)[0, 1]), 3)
    if options.output:
        draw(points, options.output)
    print(json.dumps(results))


def draw(points: list[tuple[float, float]], output: str) -> None:
    """Draw the reliability curve."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.5, 4.0), layout="constrained")
    axes.plot([0, 100], [0, 100], color="0.7", linewidth=1, label="as expected")
    axes.plot(*zip(*points, strict=True), marker="o", label="ten bins of the test set")
    axes.set(
        xlabel="expected chrF", ylabel="chrF against the reference", xlim=(0, 100), ylim=(0, 100)
    )
    axes.legend(frameon=False)
    figure.savefig(output, dpi=150)


if __name__ == "__main__":
    main()
