"""Train the sentence classifier of the scan from collected data, and write its weights into the package.

    python -m tools.train_classifier DATA [--output FILE]

``DATA`` is a folder with ``train`` and ``dev`` (see docs/model-card.md). Needs scikit-learn 1.9 and NumPy, which
Pinwarden itself does not use. The same data and versions give the same file, byte for byte: files are read and features
numbered in sorted order, and the solver (liblinear) works on one thread without random numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from pinwarden.surface.scan import classifier
from pinwarden.surface.scan.sentence_features import extract_features
from pinwarden.surface.sentences import normalise, split_sentences, walk_strings

TEXTS = Path(__file__).parents[1] / "tests" / "assets"  # texts/attacks.jsonl and texts/honest.jsonl
OUTPUT = Path(classifier.__file__).with_name("classifier.weights")
STEP = 0.05  # weights are stored as multiples of this
MIN_COUNT = 2  # a feature in fewer sentences is left out
REGULARISATION = 1.0
REFERENCE_WEIGHT = 0.5  # sentences from source code and API documentation are less typical of tools
ROUNDS = 2
FOLDS = 5  # of publishers, to choose the threshold
SUPPORT = 44  # how far below the threshold a sentence still supports a suspicious phrase
MAX_SHARED = 0.6  # share of common words from which a sentence counts as a copy of one in the dev part
FALSE_ALARMS = 0.0025  # of the honest items of publishers that the model was not trained on

Unit = list[str]
features_of = cache(lambda text: tuple(sorted(extract_features(text))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    document = train(arguments.data)
    arguments.output.write_text(document, encoding="utf-8")
    print(f"{arguments.output}: {len(document)} bytes, sha256 {hashlib.sha256(document.encode()).hexdigest()}")


def train(data: Path) -> str:
    """Return the content of the weights file."""
    part, dev = data / "train", data / "dev"
    servers = read_servers(part)
    other = {text for item in read_items(part, "honest") + read_file(TEXTS / "texts" / "honest.jsonl") for text in item}
    other |= read_sentences(part, "honest")
    reference = read_sentences(part, "api-docs") | read_sentences(part, "published")
    known = other | {text for items in servers.values() for item in items for text in item} | reference
    dev_texts = {text for kind in ("attacks", "honest") for item in read_items(dev, kind) for text in item}
    copies = CopyFinder(dev_texts - known)
    written = read_sentences(part, "attacks") | read_labelled(part)
    written = {text for text in written - known if not copies.has_copy(text)}
    attacks = [[text for text in item if text not in known] for item in read_attacks(part)]

    def fit_without(fold: int | None, positives: set[str]) -> dict[str, Any]:
        seen = [items for publisher, items in servers.items() if choose_fold(publisher) != fold]
        honest = other | {text for items in seen for item in items for text in item}
        return fit(sorted(positives), sorted(honest), sorted(reference - honest))

    positives = set(written)
    model = fit_without(None, positives)
    for _ in range(ROUNDS):
        positives = written | set(choose_sentences(model, attacks))
        model = fit_without(None, positives)
    unseen = [highest_score(model, item) for item in read_items(dev, "servers") if item]
    for fold in range(FOLDS):
        without = fit_without(fold, positives)
        for publisher, items in servers.items():
            if choose_fold(publisher) == fold:
                unseen += [highest_score(without, item) for item in items if item]
    model["threshold"] = sorted(unseen, reverse=True)[int(len(unseen) * FALSE_ALARMS)] + 1
    model["support"] = model["threshold"] - SUPPORT
    return json.dumps(model, ensure_ascii=False, indent=0, sort_keys=True) + "\n"


def read_servers(folder: Path) -> dict[str, list[Unit]]:
    """Read the items of published servers, by publisher."""
    servers: dict[str, list[Unit]] = {}
    for path in [*sorted(folder.glob("servers-*.jsonl")), *sorted(folder.glob("upgrades-*.jsonl"))]:
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            servers.setdefault(entry["source"], []).extend(read_entry(entry))
    return servers


def choose_fold(publisher: str) -> int:
    return int(hashlib.sha256(publisher.encode()).hexdigest()[:8], 16) % FOLDS


def read_labelled(folder: Path) -> set[str]:
    """Read the malicious sentences of attacks that name them."""
    texts: set[str] = set()
    for path in sorted(folder.glob("attacks-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            texts.update(text for sentence in json.loads(line).get("sentences", ()) for text in split_value(sentence))
    return texts


def read_items(folder: Path, kind: str, per: str = "item") -> list[Unit]:
    """Read the sentences of each item, or of each surface, in the files ``kind-*.jsonl``."""
    return [unit for path in sorted(folder.glob(f"{kind}-*.jsonl")) for unit in read_file(path, per)]


def read_attacks(folder: Path) -> list[Unit]:
    return read_items(folder, "attacks", per="surface") + read_file(TEXTS / "texts" / "attacks.jsonl", "surface")


def read_file(path: Path, per: str = "item") -> list[Unit]:
    units: list[Unit] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if per == "item" or "sentences" not in entry:
            units += read_entry(entry, per)
    return units


def read_entry(entry: dict[str, Any], per: str = "item") -> list[Unit]:
    units: list[Unit] = []
    for member in ("surface", "before", "after"):
        if member in entry:
            items = [list(split_value(item)) for item in list_items(entry[member])]
            units += items if per == "item" else [list(chain.from_iterable(items))]
    return units


def list_items(surface: dict[str, Any]) -> Iterator[Any]:
    kinds = ("tools", "prompts", "resources", "resourceTemplates")
    for kind in kinds:
        yield from surface.get(kind) or ()
    yield {member: value for member, value in surface.items() if member not in kinds}


def split_value(value: Any) -> Iterator[str]:
    for _, text in walk_strings(value):
        plain = text.replace('"', "'")  # as the scan reads it
        for start, end, _ in split_sentences(plain):
            yield plain[start:end]


def read_sentences(folder: Path, name: str) -> set[str]:
    lines = (folder / "sentences" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return {line.replace('"', "'") for line in lines if line and not line.startswith("## ")}


class CopyFinder:
    """Finds sentences that share most of their words with one of the given sentences."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._words = [words for text in texts if len(words := frozenset(normalise(text).split())) > 2]
        self._by_word: dict[str, list[int]] = {}
        for index, words in enumerate(self._words):
            for word in words:
                self._by_word.setdefault(word, []).append(index)

    def has_copy(self, text: str) -> bool:
        words = frozenset(normalise(text).split())
        shared = Counter(index for word in words for index in self._by_word.get(word, ()))
        return any(
            count / len(words | self._words[index]) >= MAX_SHARED for index, count in shared.items() if count > 2
        )


def fit(positives: list[str], honest: list[str], reference: list[str]) -> dict[str, Any]:
    import numpy
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    texts = positives + honest + reference
    counts = Counter(feature for text in texts for feature in features_of(text))
    names = sorted(feature for feature, count in counts.items() if count >= MIN_COUNT)
    numbers = {feature: number for number, feature in enumerate(names)}
    columns = [[numbers[feature] for feature in features_of(text) if feature in numbers] for text in texts]
    indices = numpy.array([column for row in columns for column in row])
    ends = numpy.cumsum([0, *(len(row) for row in columns)])
    matrix = csr_matrix((numpy.ones(len(indices)), indices, ends), shape=(len(texts), len(names)))
    labels = [1] * len(positives) + [0] * (len(texts) - len(positives))
    solver = LogisticRegression(C=REGULARISATION, solver="liblinear", max_iter=1000, tol=1e-3, random_state=0)
    weights = [1.0] * (len(positives) + len(honest)) + [REFERENCE_WEIGHT] * len(reference)
    solver.fit(matrix, labels, sample_weight=weights)
    stored = {name: round(float(weight) / STEP) for name, weight in zip(names, solver.coef_[0], strict=True)}
    return {
        "bias": round(float(solver.intercept_[0]) / STEP),
        "step": STEP,
        "weights": {name: weight for name, weight in stored.items() if weight},
    }


def score(model: dict[str, Any], text: str) -> int:
    weights = model["weights"]
    total: int = model["bias"] + sum(weights.get(feature, 0) for feature in features_of(text))
    return total


def choose_sentences(model: dict[str, Any], attacks: list[Unit]) -> Iterator[str]:
    """Choose the sentences that make each surface an attack: the one with the highest score, and any above zero."""
    for unit in attacks:
        ranked = sorted(unit, key=lambda text: (-score(model, text), text))
        yield from ranked[:1]
        yield from (text for text in ranked[1:] if score(model, text) > 0)


def highest_score(model: dict[str, Any], item: Unit) -> int:
    return max(score(model, text) for text in item)


if __name__ == "__main__":
    main()
