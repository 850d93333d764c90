"""Reading PEPs: the same observations from a data folder and from a clone, and whom to believe about replacements."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from decisionssearch.ingest.v1 import ingest_service_pb2 as ingest_pb2

from dsearch.sources import pep
from dsearch.sources.model import SourceError

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "peps"
T0 = datetime(2001, 1, 1, tzinfo=UTC)


def event(
    number: int, field: str, new: str | None, *, day: int, sha: str | None = None, subject: str = "change"
) -> pep.Event:
    """Return a change of a header some days after the start."""
    return pep.Event(T0 + timedelta(days=day), sha or f"{day:040d}", number, field, new, subject)


def test_one_observation_for_each_document_and_commit_with_headers_as_of_then() -> None:
    """G4: each (document, commit) is one observation that carries every header as of that commit, in time order."""
    events = [
        event(7, "Status", "Draft", day=1),
        event(7, "Title", "Old", day=1),
        event(8, "Status", "Draft", day=1),
        event(7, "Title", "New", day=2),
        event(7, "Status", "Final", day=3),
    ]
    reading = pep.build({7: pep.Document(number=7, abstract="Body", path="pep-0007.rst")}, events)
    seen = [(o.attributes["identity_key"], o.attributes["status"], o.title) for o in reading.documents]
    assert seen == [
        ("pep/7", "Draft", "Old"),
        ("pep/8", "Draft", "PEP 8"),
        ("pep/7", "Draft", "New"),
        ("pep/7", "Final", "New"),
    ]
    times = [o.occur_time.seconds for o in reading.documents]
    assert times == sorted(times)
    assert "Status: Final" in reading.documents[-1].text
    assert "Body" in reading.documents[-1].text
    assert len({o.locator for o in reading.documents if o.attributes["identity_key"] == "pep/7"}) == 3


def test_a_removed_document_says_so() -> None:
    """A file that a commit removed becomes an observation that ends the document's validity, and no status."""
    reading = pep.build(
        {}, [event(9, "Status", "Draft", day=1), event(9, "Status", None, day=2), event(9, "Status", "Draft", day=3)]
    )
    assert [o.attributes.get("removed", "") for o in reading.documents] == ["", "true", ""]
    assert "status" not in reading.documents[1].attributes


@pytest.mark.parametrize(
    ("old_status", "new_status", "followed"),
    [("Rejected", "Draft", True), ("Final", "Final", True), ("Final", "Draft", False), ("Active", "Accepted", True)],
)
def test_a_one_sided_claim_is_followed_only_when_the_old_is_dead_or_the_new_as_mature(
    old_status: str, new_status: str, followed: bool
) -> None:
    """A draft that names a standard does not take it out of force, an accepted one does; one-sided is reported."""
    reading = pep.build(
        {},
        [
            event(1, "Status", old_status, day=1),
            event(2, "Status", new_status, day=2),
            event(2, "Replaces", "PEP 1", day=3),
        ],
    )
    (claim,) = reading.supersessions
    assert (claim.old, claim.new, claim.followed, claim.one_sided) == ("pep/1", "pep/2", followed, True)
    assert len(reading.relations) == int(followed)


def test_relations_come_last_and_name_both_ends() -> None:
    """A supersession that both documents state becomes one DEPRECATES relation from the new to the old one."""
    reading = pep.build(
        {},
        [
            event(1, "Status", "Superseded", day=1),
            event(1, "Superseded-By", "PEP 2", day=4),
            event(2, "Status", "Final", day=2),
            event(2, "Replaces", "PEP 1, PEP 1", day=3),
        ],
    )
    (relation,) = reading.relations
    (row,) = json.loads(relation.attributes["relations"])
    assert (row["kind"], row["source"], row["target"]) == ("DEPRECATES", "pep/2", "pep/1")
    assert relation.occur_time.ToDatetime(UTC) == T0 + timedelta(days=3)
    assert not reading.supersessions[0].one_sided


def test_a_claim_counts_since_it_was_first_made_and_kept() -> None:
    """Another number added to the header later does not move the time of a claim that was there before."""
    reading = pep.build(
        {},
        [
            event(1, "Status", "Rejected", day=1),
            event(2, "Status", "Rejected", day=1),
            event(3, "Status", "Final", day=1),
            event(3, "Replaces", "PEP 1", day=2),
            event(3, "Replaces", "PEP 1, PEP 2", day=5),
        ],
    )
    assert [(s.old, s.since) for s in reading.supersessions] == [
        ("pep/1", T0 + timedelta(days=2)),
        ("pep/2", T0 + timedelta(days=5)),
    ]


@pytest.mark.parametrize(
    ("events", "day"),
    [
        # A draft says from the start what it will replace.
        ([("Status", 2, "Draft", 2), ("Replaces", 2, "PEP 1", 2), ("Status", 2, "Accepted", 5)], 5),
        # A header that was dropped is put back long after the decision.
        (
            [
                *[("Replaces", 2, "PEP 1", 2), ("Replaces", 2, None, 3), ("Status", 2, "Final", 4)],
                *[("Status", 1, "Superseded", 9), ("Superseded-By", 1, "PEP 2", 9), ("Replaces", 2, "PEP 1", 9)],
            ],
            4,
        ),
        # One document takes over what another said, which was in force beside it until then.
        ([("Status", 2, "Active", 2), ("Status", 1, "Superseded", 6), ("Superseded-By", 1, "PEP 2", 6)], 6),
        # The old one is given up before the new one is decided.
        ([("Status", 2, "Draft", 2), ("Replaces", 2, "PEP 1", 2), ("Status", 1, "Withdrawn", 3)], 3),
    ],
)
def test_a_supersession_takes_effect_with_the_decision(
    events: list[tuple[str, int, str | None, int]], day: int
) -> None:
    """L8: the old one stays in force as of every day before the new one was adopted, or itself given up."""
    made = [event(number, name, value, day=at) for name, number, value, at in events]
    (claim,) = pep.build({}, [event(1, "Status", "Final", day=1), *made]).supersessions
    assert (claim.old, claim.new, claim.followed) == ("pep/1", "pep/2", True)
    assert claim.since == T0 + timedelta(days=day)


def test_a_claim_that_was_taken_back_or_names_nobody_is_not_followed() -> None:
    """A header that was corrected later, or that names a document that does not exist, makes no relation."""
    reading = pep.build(
        {},
        [
            event(1, "Status", "Final", day=1),
            event(3, "Status", "Final", day=1),
            event(3, "Replaces", "PEP 1", day=2),
            event(3, "Replaces", "PEP 99", day=3),
        ],
    )
    assert [(s.old, s.followed) for s in reading.supersessions] == [("pep/99", False)]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    """A data folder with a line that cannot be read is refused with the file and the line."""
    (tmp_path / "documents.jsonl").write_text('{"number": 1}\n')
    (tmp_path / "events.jsonl").write_text('{"time": "2001-01-01T00:00:00Z"}\n')
    with pytest.raises(SourceError, match=r"events.jsonl, line 1"):
        pep.read(tmp_path)


def test_a_corpus_of_the_same_form_keeps_its_own_name(tmp_path: Path) -> None:
    """A data folder of another series than PEPs, e.g. KEPs, gives keys of that series, relations included."""
    rows = [{"id": f"KEP {n}", "number": n, "title": f"T{n}"} for n in (7, 8)]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = [("KEP 7", "Status", "Superseded"), ("KEP 8", "Status", "Final"), ("KEP 8", "Replaces", "KEP 7")]
    (tmp_path / "events.jsonl").write_text(
        "".join(
            json.dumps({"time": "2021-01-01T00:00:00Z", "sha": "1" * 40, "pep": key, "field": name, "new": value})
            + "\n"
            for key, name, value in changes
        )
    )
    reading = pep.read(tmp_path)
    assert {o.attributes["identity_key"] for o in reading.documents} == {"kep/7", "kep/8"}
    assert [(s.old, s.new, s.followed) for s in reading.supersessions] == [("kep/7", "kep/8", True)]
    assert '"source": "kep/8"' in reading.relations[0].attributes["relations"]


def test_a_folder_that_is_neither_is_refused(tmp_path: Path) -> None:
    """A folder without data and without history is refused with what it should be."""
    with pytest.raises(SourceError, match="neither a clone"):
        pep.read(tmp_path)


def _git(folder: Path, *arguments: str, day: int = 1) -> None:
    moment = (T0 + timedelta(days=day)).isoformat()
    environment = {
        "GIT_AUTHOR_DATE": moment,
        "GIT_COMMITTER_DATE": moment,
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.org",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "PATH": "/usr/bin:/bin:/usr/local/bin",
        "HOME": str(folder),
    }
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env=environment, capture_output=True)


def test_a_clone_gives_headers_from_its_history(tmp_path: Path) -> None:
    """A clone is read commit by commit: renames keep the identity, removals end it, odd headers are read."""
    _git(tmp_path, "init", "-q", "-b", "main")
    first = "PEP: 3\nTitle: Três\nStatus: Draft\nAuthor: Ana <ana@example.org>,\n  Bo\n\nAbstract\n========\n\nWhat.\n"
    (tmp_path / "pep-0003.txt").write_bytes(first.encode("latin-1"))
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "one", day=1)
    (tmp_path / "peps").mkdir()
    _git(tmp_path, "mv", "pep-0003.txt", "peps/pep-0003.rst")
    second = first.replace("Draft", "Final\nStatus: Odd").replace("PEP: 3", "\nPEP: 3")
    (tmp_path / "peps/pep-0003.rst").write_text(second)
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "two", day=2)
    (tmp_path / "readme.txt").write_text("nothing")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "three", day=3)
    _git(tmp_path, "rm", "-q", "peps/pep-0003.rst")
    _git(tmp_path, "commit", "-q", "-m", "four", day=4)
    reading = pep.read(tmp_path)
    assert [(o.attributes.get("status", ""), o.title) for o in reading.documents] == [
        ("Draft", "Três"),
        ("Final", "Três"),
        ("", "PEP 3"),
    ]
    assert reading.documents[1].occur_time.ToDatetime(UTC) == T0 + timedelta(days=2)
    documents, _ = pep.read_clone(tmp_path)
    assert documents == {}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the PEP data set is not at {DATA}")
def test_the_real_history_agrees_with_git_on_every_date() -> None:
    """As of every date of asof.jsonl the last observation before it has the status that git itself gives."""
    reading = pep.read(DATA)
    assert (len(reading.documents), reading.facts["documents"]) == (2188, 736)
    by_key: dict[str, list[ingest_pb2.RawObservation]] = {}
    for item in reading.documents:
        by_key.setdefault(item.attributes["identity_key"], []).append(item)
    for line in (DATA / "asof.jsonl").read_text().splitlines():
        row = json.loads(line)
        moment = datetime.fromisoformat(row["date"]).replace(tzinfo=UTC).timestamp()
        known = [o for o in by_key[pep.key_of(int(row["pep"].split()[1]))] if o.occur_time.seconds <= moment]
        status = known[-1].attributes.get("status") if known else None
        assert (status or None) == row["status"], row
