"""Compare methods that classify sentences, each tested on sources that it was not trained on.

    python -m tools.compare_methods

Needs what `tools/train_classifier.py` needs, and wordllama 0.4.0 for the static embeddings. All data is in the
repository. Authors and publishers are dealt into folds; a fold is judged by a model that was trained on the other ones.
The threshold of a method leaves the same share of honest tools with a warning, so the methods can be compared by the
attacks that they find.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pinwarden.surface.scan.sentence_features import extract_features, find_roles, list_roles, tokenize
from tools import train_classifier as training
from tools.train_classifier import JUDGEMENT, STEERING, Unit, read_lines, split_entry, split_values

FOLDS = 5
SHARES = (0.005, 0.01, 0.02)  # of honest tools that may have a warning
PENALTY = 3.0
_ORDER_ROLES = frozenset(
    {"oblige", "always", "before", "after", "not", "ignore", "priority", "prefer", "norm", "model"}
)
_ACTION_ROLES = frozenset(
    {"send", "put", "secret", "conversation", "personal", "hide", "tell", "ask", "destroy", "outside", "persist"}
)

Judge = Callable[[list[str], list[str]], Callable[[Sequence[str]], list[float]]]
"""Trains on attack and honest sentences. Returns a function that gives a score for each of several sentences."""


class Case(NamedTuple):
    """A definition: its source, its sentences, and the ones that make it an attack if they are marked."""

    source: str
    sentences: Unit
    marked: Unit


def main() -> None:
    attacks, lookalikes, tools = list(read_attacks()), list(read_lookalikes()), list(read_tools())
    reference = sorted(set(training.read_reference()))
    print(f"{len(attacks)} attacks by {len({case.source for case in attacks})} authors, ", end="")
    print(f"{len(tools)} honest tools of {len({case.source for case in tools})} publishers, {FOLDS} folds by source\n")
    print(f"{'attacks found at this share of honest tools':44}" + "".join(f"{share:>9.1%}" for share in SHARES))
    for name, judge in list_methods().items():
        scores = cross_validate(judge, attacks, lookalikes, tools, reference)
        cells = []
        for share in SHARES:
            ranked = sorted(scores["tools"], reverse=True)
            threshold = ranked[int(share * len(ranked))]
            cells.append(sum(score > threshold for score in scores["attacks"]) / len(attacks))
        print(f"{name:44}" + "".join(f"{cell:>9.0%}" for cell in cells), flush=True)


def list_methods() -> dict[str, Judge]:
    methods: dict[str, Judge] = {
        "a) roles, without training": without_training,
        "b) linear: words, pairs of words, roles": train_on(extract_features),
        "b) linear: words and pairs of words": train_on(lambda text: extract_features(text) - role_features(text)),
        "b) linear: roles only": train_on(role_features),
    }
    embed = load_embeddings()
    if embed is None:
        print("c) static embeddings: wordllama is not installed\n")
        return methods
    return {
        **methods,
        "c) static embeddings, averaged": train_on(None, embed),
        "b) and c) together": train_on(extract_features, embed),
    }


# Data


def find_fold(source: str) -> int:
    return hashlib.sha256(source.encode()).digest()[0] % FOLDS


def read_attacks() -> Iterator[Case]:
    for entry in read_lines(JUDGEMENT / "attacks.jsonl"):
        yield Case(entry["source"], split_entry(entry), [])
    for path in sorted(STEERING.glob("*-attacks.jsonl")):
        for entry in read_lines(path):
            yield Case(path.name.removesuffix("-attacks.jsonl"), split_entry(entry), split_values(entry["sentences"]))


def read_lookalikes() -> Iterator[Case]:
    for entry in read_lines(JUDGEMENT / "honest.jsonl"):
        yield Case(entry["source"], split_entry(entry), [])
    for path in sorted(STEERING.glob("*-honest.jsonl")):
        for entry in read_lines(path):
            yield Case(path.name.removesuffix("-honest.jsonl"), split_entry(entry), [])


def read_tools() -> Iterator[Case]:
    for entry in read_lines(JUDGEMENT / "servers.jsonl"):
        for tool in entry["surface"].get("tools", ()):
            yield Case(entry["source"], split_values([tool]), [])


def cross_validate(
    judge: Judge, attacks: list[Case], lookalikes: list[Case], tools: list[Case], reference: list[str]
) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = {"attacks": [], "tools": []}
    folds = assign_folds([*attacks, *tools])
    for fold in range(FOLDS):
        seen = [case for case in attacks if folds[case.source] != fold]
        honest = {
            text
            for case in (*lookalikes, *tools)
            if folds.get(case.source, find_fold(case.source)) != fold
            for text in case.sentences
        } | set(reference)
        positives = {text for case in seen for text in case.marked} - honest
        honest |= {text for case in seen if case.marked for text in case.sentences} - positives
        unmarked = [[text for text in case.sentences if text not in honest] for case in seen if not case.marked]
        # The malicious sentences of the other attacks are those that a first model finds.
        first = judge(sorted(positives), sorted(honest))
        for unit in unmarked:
            if unit:
                ranked = sorted(zip(first(unit), unit, strict=True), reverse=True)
                positives.add(ranked[0][1])
        score = judge(sorted(positives), sorted(honest - positives))
        for name, cases in (("attacks", attacks), ("tools", tools)):
            tested = [case for case in cases if folds[case.source] == fold]
            flat = score([text for case in tested for text in case.sentences] or [""])
            position = 0
            for case in tested:
                own = flat[position : position + len(case.sentences)]
                position += len(case.sentences)
                scores[name].append(max(own, default=float("-inf")))
    return scores


def assign_folds(cases: Iterable[Case]) -> dict[str, int]:
    """Deal the authors into different folds, and the publishers by their hash."""
    sources = sorted({case.source for case in cases})
    authors = [source for source in sources if source.startswith("author-")]
    return {source: find_fold(source) for source in sources} | {
        author: number % FOLDS for number, author in enumerate(authors)
    }


# Methods


def count_role_pairs(text: str) -> float:
    """How many pairs of an order and an action the words of a sentence have: the method without training."""
    roles = {name for token in tokenize(text) for name in list_roles(find_roles(token))}
    return float(len(roles & _ORDER_ROLES) * len(roles & _ACTION_ROLES))


def without_training(_positives: list[str], _honest: list[str]) -> Callable[[Sequence[str]], list[float]]:
    return lambda texts: list(map(count_role_pairs, texts))


def role_features(text: str) -> set[str]:
    return {
        feature
        for feature in extract_features(text)
        if " " not in feature and (feature[0] in "=^<" or "+" in feature or ">" in feature)
    }


def train_on(extract: Callable[[str], set[str]] | None, embed: Callable[[Sequence[str]], Any] | None = None) -> Judge:
    """A logistic regression over features, embeddings, or both."""

    def train(positives: list[str], honest: list[str]) -> Callable[[Sequence[str]], list[float]]:
        import numpy
        from scipy.optimize import minimize
        from scipy.sparse import csr_matrix, hstack

        texts = positives + honest
        numbers: dict[str, int] = {}
        if extract is not None:
            names = chain.from_iterable(sorted(extract(text)) for text in texts)
            for name in names:
                numbers.setdefault(name, len(numbers))

        def build_matrix(rows: Sequence[str]) -> Any:
            parts = []
            if extract is not None:
                columns = [[numbers[name] for name in extract(text) if name in numbers] for text in rows]
                ends = numpy.cumsum([0, *map(len, columns)])
                indices = numpy.fromiter(chain.from_iterable(columns), dtype=int)
                parts.append(csr_matrix((numpy.ones(len(indices)), indices, ends), shape=(len(rows), len(numbers))))
            if embed is not None:
                parts.append(csr_matrix(embed(rows)))
            return hstack(parts).tocsr()

        matrix = build_matrix(texts)
        transposed = matrix.T.tocsr()
        signs = numpy.array([1.0] * len(positives) + [-1.0] * len(honest))

        def compute_loss(values: Any) -> tuple[float, Any]:
            margins = signs * (matrix @ values[:-1] + values[-1])
            gradient = -signs / (1 + numpy.exp(numpy.clip(margins, -500, 500)))
            loss = float(numpy.logaddexp(0, -margins).sum() + PENALTY / 2 * (values[:-1] @ values[:-1]))
            return loss, numpy.append(transposed @ gradient + PENALTY * values[:-1], gradient.sum())

        start = numpy.zeros(matrix.shape[1] + 1)
        solved = minimize(compute_loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}).x
        return lambda rows: list(build_matrix(rows) @ solved[:-1] + solved[-1])

    return train


def load_embeddings() -> Callable[[Sequence[str]], Any] | None:
    """Load the static embeddings that are in the wheel of wordllama; None if it is not installed."""
    try:
        import wordllama  # type: ignore[import-not-found]
    except ImportError:
        return None
    folder = Path(wordllama.__file__).parent
    model = wordllama.WordLlama.load(dim=256, cache_dir=folder, disable_download=True)
    return lambda texts: model.embed(list(texts), norm=True) * EMBEDDING_SCALE


EMBEDDING_SCALE = 8.0  # as long as a sentence of 64 features, so that the penalty means the same


if __name__ == "__main__":
    main()
