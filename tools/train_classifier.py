"""Train the sentence classifier of the scan, and write its weights into the package.

    python -m tools.train_classifier [--output FILE]

Needs NumPy 2.4.6 and SciPy 1.17.1, which Pinwarden itself does not use. All data is in the repository (see
docs/model-card.md), so the same versions give the same file, byte for byte: files are read and features numbered in
sorted order, and the solver works on one thread without random numbers.

Training starts from the weights of the first version, whose data is not published, and changes them as little as the
new data allows: the penalty is on the difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from pinwarden.surface.scan import classifier
from pinwarden.surface.scan.sentence_features import extract_features
from pinwarden.surface.sentences import split_sentences, walk_strings

ROOT = Path(__file__).parents[1]
JUDGEMENT = ROOT / "benchmarks" / "data" / "judgement"
TEXTS = ROOT / "tests" / "assets" / "texts"
STEERING = ROOT / "tools" / "data" / "steering"
OUTPUT = Path(classifier.__file__).with_name("classifier.weights")
STEP = 0.05  # weights are stored as multiples of this
MIN_COUNT = 2  # a feature in fewer sentences is left out
PENALTY = 10.0
REFERENCE_WEIGHT = 1.0
THRESHOLD = 18  # chosen on tools of publishers that are not in the data, see docs/model-card.md
SUPPORT = 44  # how far below the threshold a sentence still supports a suspicious phrase
MIN_LENGTH = 8  # the scan does not classify shorter text

Unit = list[str]
features_of = cache(lambda text: tuple(sorted(extract_features(text))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    document = train()
    arguments.output.write_text(document, encoding="utf-8")
    print(f"{arguments.output}: {len(document)} bytes, sha256 {hashlib.sha256(document.encode()).hexdigest()}")


def train() -> str:
    """Return the content of the weights file."""
    first = json.loads(lzma.decompress((STEERING / "first.weights.xz").read_bytes()))
    attacks = list(read_attacks())
    labelled = {text for entry in attacks for text in split_values(entry.get("sentences", ()))}
    reference = set(read_reference())
    honest = {text for unit in read_honest() for text in unit}
    labelled -= honest | reference
    rest = {text for entry in attacks if "sentences" in entry for text in split_entry(entry)}
    honest |= rest - labelled
    unlabelled = [
        [text for text in split_entry(entry) if text not in honest and text not in reference]
        for entry in attacks
        if "sentences" not in entry
    ]
    model = fit(first, sorted(labelled), sorted(honest), sorted(reference - honest))
    positives = labelled | set(choose_sentences(model, unlabelled))
    model = fit(first, sorted(positives), sorted(honest - positives), sorted(reference - honest - positives))
    model |= {"threshold": THRESHOLD, "support": THRESHOLD - SUPPORT}
    return json.dumps(model, ensure_ascii=False, indent=0, sort_keys=True) + "\n"


def read_attacks() -> Iterator[dict[str, Any]]:
    yield from (entry for entry in read_lines(JUDGEMENT / "attacks.jsonl") if entry["part"] == "train")
    yield from read_lines(TEXTS / "attacks.jsonl")
    for path in sorted(STEERING.glob("*-attacks.jsonl")):
        yield from read_lines(path)


def read_honest() -> Iterator[Unit]:
    """Read the sentences of honest definitions, and of published servers and their upgrades."""
    for path in [*sorted(STEERING.glob("*-honest.jsonl")), TEXTS / "honest.jsonl"]:
        yield from map(split_entry, read_lines(path))
    for name in ("honest", "servers", "upgrades"):
        for entry in read_lines(JUDGEMENT / f"{name}.jsonl"):
            if entry["part"] == "train":
                yield split_entry(entry)


def read_reference() -> Iterator[str]:
    lines = lzma.decompress((STEERING / "api-docs.txt.xz").read_bytes()).decode().splitlines()
    yield from (line for line in lines if line and not line.startswith("## "))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def split_entry(entry: dict[str, Any]) -> Unit:
    """Split all texts of an entry into sentences."""
    return split_values(entry[member] for member in ("surface", "before", "after") if member in entry)


def split_values(values: Iterable[Any]) -> Unit:
    texts = (text for value in values for _, text in walk_strings(value))
    plain_texts = [text.replace('"', "'") for text in texts]  # as the scan reads them
    sentences = (plain[start:end] for plain in plain_texts for start, end, _ in split_sentences(plain))
    return [sentence for sentence in sentences if len(sentence) >= MIN_LENGTH]


def fit(first: dict[str, Any], positives: list[str], honest: list[str], reference: list[str]) -> dict[str, Any]:
    """Fit a logistic regression whose penalty is on the difference to the weights of ``first``."""
    import numpy
    from scipy.optimize import minimize
    from scipy.sparse import csr_matrix

    texts = positives + honest + reference
    counts = Counter(feature for text in texts for feature in features_of(text))
    names = sorted({*first["weights"], *(feature for feature, count in counts.items() if count >= MIN_COUNT)})
    numbers = {feature: number for number, feature in enumerate(names)}
    columns = [[numbers[feature] for feature in features_of(text) if feature in numbers] for text in texts]
    indices = numpy.array(list(chain.from_iterable(columns)))
    ends = numpy.cumsum([0, *map(len, columns)])
    matrix = csr_matrix((numpy.ones(len(indices)), indices, ends), shape=(len(texts), len(names)))
    transposed = matrix.T.tocsr()
    signs = numpy.array([1.0] * len(positives) + [-1.0] * (len(texts) - len(positives)))
    shares = numpy.array([1.0] * (len(positives) + len(honest)) + [REFERENCE_WEIGHT] * len(reference))
    start = numpy.array([first["weights"].get(name, 0) * STEP for name in names])
    known = matrix @ start + first["bias"] * STEP

    def compute_loss(values: Any) -> tuple[float, Any]:
        change, bias = values[:-1], values[-1]
        margins = signs * (matrix @ change + bias + known)
        gradient = -shares * signs / (1 + numpy.exp(numpy.clip(margins, -500, 500)))
        loss = float(shares @ numpy.logaddexp(0, -margins) + PENALTY / 2 * (change @ change))
        return loss, numpy.append(transposed @ gradient + PENALTY * change, gradient.sum())

    solved = minimize(compute_loss, numpy.zeros(len(names) + 1), jac=True, method="L-BFGS-B", options={"maxiter": 60})
    weights = {name: round(float(weight) / STEP) for name, weight in zip(names, start + solved.x[:-1], strict=True)}
    return {
        "bias": first["bias"] + round(float(solved.x[-1]) / STEP),
        "step": STEP,
        "weights": {name: weight for name, weight in weights.items() if weight},
    }


def choose_sentences(model: dict[str, Any], attacks: list[Unit]) -> Iterator[str]:
    """Choose the sentences that make each surface an attack: the one with the highest score, and any above zero."""
    for unit in attacks:
        ranked = sorted(unit, key=lambda text: (-score(model, text), text))
        yield from ranked[:1]
        yield from (text for text in ranked[1:] if score(model, text) > 0)


def score(model: dict[str, Any], text: str) -> int:
    weights = model["weights"]
    total: int = model["bias"] + sum(weights.get(feature, 0) for feature in features_of(text))
    return total


if __name__ == "__main__":
    main()
