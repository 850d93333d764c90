"""The support signals, the bank and its calibration."""

from __future__ import annotations

import numpy as np
import pytest

from index_svc.support import (
    BANK_VERSION,
    Calibration,
    QueryWords,
    Support,
    calibrate,
    centred_signal,
    finite,
    generic_questions,
    language_of,
    late_signal,
    offtopic_questions,
    sentence_signal,
)

X, Y, Z = np.eye(3, dtype=np.float32)


def test_sent_is_the_best_sentence_of_the_top_three() -> None:
    """R6: one sentence that answers is enough, but only in the three best memories."""
    weak, strong = np.stack([Y, Z]), np.stack([Y, (X + Y) / np.sqrt(2)])
    assert sentence_signal(X, [weak, strong]) == pytest.approx(0.7071, abs=1e-3)
    assert sentence_signal(X, [weak, weak, weak, np.stack([X])]) == pytest.approx(0.0)
    assert sentence_signal(X, []) == 0.0
    assert sentence_signal(X, [np.empty((0, 3), dtype=np.float32)]) == 0.0


def test_cc_takes_out_what_everything_has_in_common() -> None:
    """R6: a document that is only typical of its corpus has no centred likeness to a question that is only typical."""
    mean = np.array([1.0, 0.0, 0.0], dtype=np.float32)
    generic = np.array([1.0, 0.0, 0.0], dtype=np.float32)
    documents = np.stack([X, (X + Y) / np.sqrt(2), (X + Z) / np.sqrt(2)])
    question = (X + Y) / np.sqrt(np.float32(2))
    scores = centred_signal(question, generic, documents, mean)
    assert scores[0] == pytest.approx(0.0)
    assert scores[1] > 0.9
    assert scores[2] < 0.2
    assert centred_signal(question, generic, np.empty((0, 3)), mean).shape == (0,)


def test_late_weighs_words_by_rarity() -> None:
    """R6: the share of the question's words, by idf, that a memory has or comes near to; opposite words count zero."""
    words = QueryWords(np.array([3.0, 1.0]), np.stack([X, Y]))
    assert late_signal(words, [np.stack([X, Z])]) == pytest.approx(0.75)
    assert late_signal(words, [np.stack([Y])]) == pytest.approx(0.25)
    assert late_signal(words, [np.stack([Z]), np.stack([X, Y])]) == pytest.approx(1.0)
    assert late_signal(words, [np.stack([-X, -Y])]) == 0.0
    assert late_signal(words, [np.stack([Z])] * 3 + [np.stack([X, Y])]) == 0.0, "the fourth does not count"
    assert late_signal(QueryWords(np.zeros(0), np.empty((0, 3), dtype=np.float32)), [np.stack([X])]) == 0.0
    assert late_signal(words, []) == 0.0


def test_total_is_the_sum() -> None:
    """The number that is compared is the plain sum of the three."""
    assert Support(0.5, 0.25, 0.125).total == 0.875


def test_calibration_measures_distance_from_nonsense() -> None:
    """R6: z counts deviations above the bank; without spread there is no distance."""
    made = calibrate([0.8, 1.0, 1.2], documents=40)
    assert made == Calibration(pytest.approx(1.0), pytest.approx(0.2), 3, 40, BANK_VERSION)
    assert made is not None
    assert made.z(1.4) == pytest.approx(2.0)
    assert Calibration(1.0, 0.0, 3, 40).z(2.0) == 0.0
    assert calibrate([], 40) is None
    assert calibrate([1.0, 2.0], 0) is None


@pytest.mark.parametrize(
    ("documents", "outdated"), [(100, False), (105, False), (110, False), (111, True), (89, True), (0, True)]
)
def test_a_noticeable_change_outdates_a_calibration(documents: int, outdated: bool) -> None:
    """More than a tenth and more than five heads of difference ask for a new one; so does another bank."""
    assert Calibration(1.0, 0.1, 100, 100).is_outdated(documents) is outdated
    assert Calibration(1.0, 0.1, 100, 100, bank="b0").is_outdated(100)
    assert not Calibration(1.0, 0.1, 100, 3).is_outdated(8)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Which message broker did we choose?", "en"),
        ("Qual broker de mensagens escolhemos?", "pt"),
        ("Por que decidimos isso?", "pt"),
        ("how do we roll back", "en"),
        ("como fazemos o rollback", "pt"),
        ("decisão", "pt"),
        ("kubernetes", "en"),
        ("", "en"),
    ],
)
def test_language_by_function_words(text: str, language: str) -> None:
    """The question's language picks the generic mean; English when in doubt."""
    assert language_of(text) == language


def test_the_bank_is_whole_and_in_both_languages() -> None:
    """R6: about a hundred distinct off-topic questions and twenty generic ones per language, each readable."""
    bank = offtopic_questions()
    assert len(bank) == len({text for _, text in bank}) == 100
    assert {lang for lang, _ in bank} == {"en", "pt"}
    assert sum(language_of(text) == lang for lang, text in bank) >= 97
    generic = generic_questions()
    assert {lang: len(set(texts)) for lang, texts in generic.items()} == {"en": 20, "pt": 20}
    assert all(language_of(text) == lang for lang, texts in generic.items() for text in texts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_leave_are_numbers(value: float) -> None:
    """R8: NaN and infinity become 0, everything else stays."""
    assert finite(value) == 0.0
    assert finite(-0.25) == -0.25
