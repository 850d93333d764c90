"""The embedding-text recipe: parts, views, hashes, sentences."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_svc.recipe import (
    MAX_SENTENCE_CHARS,
    MAX_SENTENCES,
    MIN_SENTENCE_CHARS,
    EmbeddingText,
    MemoryText,
    combine_views,
    dense_views,
    embedding_text,
    sentences,
    sparse_text,
    unit_rows,
)


def test_every_text_field_reaches_the_text() -> None:
    """The recipe covers title, summary and everything that explains them; leaving the matter out cost most."""
    memory = MemoryText(
        "T", "A", "d", "o", "t", "r", ("rule",), ("step",), ("alternative",), ("example",), "task", "outcome"
    )
    text = embedding_text(memory)
    assert (text.title, text.summary) == ("T", "A")
    rest = ["d", "o", "t", "r", "rule", "step", "alternative", "example", "task", "outcome"]
    assert text.matter.split("\n\n") == rest
    assert sparse_text(text).startswith("T\nA\nd")


@pytest.mark.parametrize("name", [f.name for f in fields(MemoryText)])
def test_every_field_changes_the_hash(name: str) -> None:
    """I8: two memories share features only when every field of their text is equal."""
    base = MemoryText("title")
    changed = replace(base, **{name: ("x",) if isinstance(getattr(base, name), tuple) else "x"})
    assert embedding_text(base).text_hash != embedding_text(changed).text_hash
    assert embedding_text(base).text_hash == embedding_text(MemoryText("title")).text_hash


def test_parts_are_not_confused() -> None:
    """I8: the same words as summary or as details are two texts."""
    assert embedding_text(MemoryText("t", "x")).text_hash != embedding_text(MemoryText("t", "", "x")).text_hash


def test_views_leave_out_empty_parts() -> None:
    """A memory with a title only is embedded by its title, not by a title with an empty half."""
    assert dense_views(EmbeddingText("T", "A", "M")) == ("T. A", "T. M")
    assert dense_views(EmbeddingText("T", "", "M")) == ("T. M",)
    assert dense_views(EmbeddingText("T", "", "")) == ("T",)


def test_views_are_combined_as_unit_vectors() -> None:
    """Both halves count the same, however long their vectors are; the result has length 1."""
    combined = combine_views(np.array([[10.0, 0.0], [0.0, 0.1]], dtype=np.float32))
    assert np.allclose(combined, [0.5**0.5, 0.5**0.5])
    assert np.allclose(combine_views(np.array([[0.0, 3.0]], dtype=np.float32)), [0.0, 1.0])
    assert np.array_equal(unit_rows(np.zeros((1, 3), dtype=np.float32)), np.zeros((1, 3)))


def test_broken_text_is_cleaned() -> None:
    """R8: lone surrogates and NUL never reach an encoder or a database."""
    text = embedding_text(MemoryText("a\ud800b\x00c"))
    text.title.encode("utf-8")
    assert "\x00" not in text.title
    assert len(text.text_hash) == 64


def test_sentences_of_prose() -> None:
    """Stops, blank lines and list items end sentences in both languages; abbreviations do not."""
    text = EmbeddingText(
        "Publish on every green build",
        "We publish from main, e.g. after a merge to it. Rollbacks go through the same gate!",
        "Por que decidimos isso? Porque o processo manual falhava sempre.\n\n- every service has an owner\n"
        "- every owner is on the rota for it",
    )
    assert sentences(text) == (
        "Publish on every green build",
        "We publish from main, e.g. after a merge to it.",
        "Rollbacks go through the same gate!",
        "Por que decidimos isso? Porque o processo manual falhava sempre.",
        "- every service has an owner",
        "- every owner is on the rota for it",
    )


def test_short_and_odd_texts_have_a_sentence_too() -> None:
    """A title of one word is its own sentence; CJK text is split without spaces; nothing is empty."""
    assert sentences(EmbeddingText("Short", "", "")) == ("Short",)
    cjk = "決定を記録することは非常に重要であり、全員が守らなければならない規則である。" * 2
    assert len(sentences(EmbeddingText("題", cjk, ""))) == 2
    assert sentences(EmbeddingText("", "", "")) == ()


@given(st.text(max_size=3_000), st.text(max_size=3_000))
def test_sentences_keep_their_bounds(summary: str, matter: str) -> None:
    """Every sentence has 25 to 400 characters (a lone title may be shorter), and there are at most 64."""
    found = sentences(embedding_text(MemoryText("A title that is long enough", summary, matter)))
    assert 1 <= len(found) <= MAX_SENTENCES
    assert all(MIN_SENTENCE_CHARS <= len(s) <= MAX_SENTENCE_CHARS for s in found)


def test_a_text_without_stops_is_cut_at_spaces() -> None:
    """A long run of words becomes pieces of at most 400 characters, and no word is lost or broken."""
    words = [f"word{i}" for i in range(300)]
    found = sentences(EmbeddingText("", " ".join(words), ""))
    assert all(len(s) <= MAX_SENTENCE_CHARS for s in found)
    assert " ".join(found).split() == words
