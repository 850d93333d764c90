"""Reading decision records: dates, identities, and what a record that is already superseded tells about the past."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsearch.sources import adr
from dsearch.sources.model import SourceError, SourceReading

SAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adr"


def days(reading: SourceReading) -> list[tuple[str, str, str]]:
    """Return key, day and status of each observation."""
    return [
        (o.attributes["identity_key"], o.occur_time.ToDatetime(UTC).date().isoformat(), o.attributes.get("status", ""))
        for o in reading.documents
    ]


def test_the_samples_are_read_with_their_own_dates() -> None:
    """The sample decisions span years in two languages, and both of their supersessions are found."""
    reading = adr.read(SAMPLES, adr.Dates.DOCUMENT)
    assert reading.families == 14
    assert [(s.old, s.new, s.followed, s.one_sided) for s in reading.supersessions] == [
        ("adr/0003", "adr/0008", True, False),
        ("adr/0004", "adr/0007", True, False),
    ]
    assert {o.occur_time.ToDatetime().year for o in reading.documents} >= {2019, 2025}


def test_a_record_that_is_already_superseded_was_in_force_until_its_successor() -> None:
    """L8: a superseded record is observed as accepted from its own date, and as superseded from its successor's."""
    found = [row for row in days(adr.read(SAMPLES, adr.Dates.DOCUMENT)) if row[0] == "adr/0004"]
    assert found == [("adr/0004", "2019-09-02", "Accepted"), ("adr/0004", "2021-04-12", "")]


@pytest.mark.parametrize(
    ("text", "status", "date", "by", "old"),
    [
        (
            "---\nstatus: accepted\ndate: 2020-01-02\nsupersedes: [4, 5]\n---\n# T\n",
            "accepted",
            "2020-01-02",
            (),
            (4, 5),
        ),
        ("# 7. T\n\nDate: 2020-01-02\n\n## Status\n\nSuperseded by [ADR 9](0009-x.md)\n", None, "2020-01-02", (9,), ()),
        ("# T\n\n* Status: substituída por ADR-12\n* Data: 2020-01-02\n", None, "2020-01-02", (12,), ()),
        ("# T\n\n## Situação\n\nAceita. Substitui a ADR-3 de 2019-01-01\n", None, None, (), (3,)),
        ("# T\n\nNothing here supersedes: anything\n", "", None, (), ()),
        ("---\nstatus: superseded\nsuperseded-by: 11\ndate: 2020-13-40\n---\n# T\n", "superseded", None, (11,), ()),
    ],
)
def test_what_records_say_about_themselves(
    text: str, status: str | None, date: str | None, by: tuple[int, ...], old: tuple[int, ...]
) -> None:
    """Front matter, header lines and status sections are read in English and Portuguese; dates are no numbers."""
    record = adr.parse(text)
    assert (record.superseded_by, record.supersedes) == (by, old)
    assert (record.date.date().isoformat() if record.date else None) == date
    if status is not None:
        assert record.status == status


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("docs/0007-cache.md", "adr/0007"),
        ("adr-12-x.md", "adr/0012"),
        ("ADR_3.md", "adr/0003"),
        ("2021-03-04-use-x.md", "adr/2021-03-04-use-x"),
        ("Use X.md", "adr/use-x"),
    ],
)
def test_identity_comes_from_the_number_or_the_name(path: str, key: str) -> None:
    """A record keeps its identity when its title or folder changes; a date at the front is no number."""
    assert adr.key_of(path) == key


def _git(folder: Path, day: str, *arguments: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        **{f"GIT_{who}_DATE": f"{day}T12:00:00+00:00" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "ada@example.org" for who in ("AUTHOR", "COMMITTER")},
    }
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env=environment, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository in which a record was accepted, renamed, superseded, and another one removed."""
    folder = tmp_path / "docs"
    folder.mkdir()
    _git(tmp_path, "2021-01-01", "init", "-q", "-b", "main")
    (folder / "0001-a.md").write_text("---\nstatus: accepted\ndate: 2020-06-01\n---\n# A\n\nText\n")
    (folder / "0002-b.md").write_text("# B\n\n## Status\n\nProposed\n")
    (folder / "README.md").write_text("# Index\n\n## Status\n\nnone\n")
    _git(tmp_path, "2021-01-01", "add", ".")
    _git(tmp_path, "2021-01-01", "commit", "-q", "-m", "write down")
    _git(tmp_path, "2022-01-01", "mv", "docs/0001-a.md", "docs/0001-a-renamed.md")
    (folder / "0001-a-renamed.md").write_text("---\nstatus: superseded by ADR-3\ndate: 2020-06-01\n---\n# A\n\nText\n")
    (folder / "0003-c.md").write_text("---\nstatus: accepted\nsupersedes: 1\n---\n# C\n")
    _git(tmp_path, "2022-01-01", "add", ".")
    _git(tmp_path, "2022-01-01", "commit", "-q", "-m", "replace A")
    _git(tmp_path, "2023-01-01", "rm", "-q", "docs/0002-b.md")
    _git(tmp_path, "2023-01-01", "commit", "-q", "-m", "drop B")
    return tmp_path


def test_a_repository_gives_every_committed_text_with_its_date(repository: Path) -> None:
    """In a repository each committed text is an observation; a record's own earlier date counts for its first text."""
    reading = adr.read(repository / "docs")
    assert days(reading) == [
        ("adr/0001", "2020-06-01", ""),
        ("adr/0002", "2021-01-01", ""),
        ("adr/0001", "2022-01-01", ""),
        ("adr/0003", "2022-01-01", ""),
        ("adr/0002", "2023-01-01", ""),
    ]
    assert reading.documents[-1].attributes["removed"] == "true"
    (relation,) = reading.relations
    assert relation.occur_time.ToDatetime().year == 2022
    assert json.loads(relation.attributes["relations"])[0]["target"] == "adr/0001"


def test_texts_that_are_not_committed_are_observed_too(repository: Path) -> None:
    """A change of the work tree is observed after the last commit, and nothing twice."""
    path = repository / "docs" / "0003-c.md"
    path.write_text(path.read_text() + "\nMore\n")
    found = [o for o in adr.read(repository / "docs").documents if o.attributes["identity_key"] == "adr/0003"]
    assert [o.locator.split(":")[0] for o in found] == ["git", "file"]
    assert found[1].occur_time.ToDatetime(UTC) >= datetime(2022, 1, 1, tzinfo=UTC)


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    """A folder that holds no decision record is refused, and git dates without git as well."""
    (tmp_path / "notes.md").write_text("# Notes\n")
    with pytest.raises(SourceError, match="no decision records"):
        adr.read(tmp_path)
    (tmp_path / "0001-x.md").write_text("# X\n")
    with pytest.raises(SourceError, match="--dates document"):
        adr.read(tmp_path, adr.Dates.GIT)


def test_a_draft_does_not_end_a_record_that_does_not_agree(tmp_path: Path) -> None:
    """A proposed record that claims to supersede an accepted one is reported and not followed."""
    (tmp_path / "0001-x.md").write_text("---\nstatus: accepted\ndate: 2020-01-01\n---\n# X\n")
    (tmp_path / "0002-y.md").write_text("---\nstatus: proposed\ndate: 2021-01-01\nsupersedes: 1\n---\n# Y\n")
    reading = adr.read(tmp_path, adr.Dates.DOCUMENT)
    assert [(s.one_sided, s.followed) for s in reading.supersessions] == [(True, False)]
    assert not reading.relations


def test_files_that_cannot_be_read_are_named_with_the_reason(tmp_path: Path) -> None:
    """No record is lost in silence: bad bytes, open front matter, empty files and impossible dates are listed."""
    good = "---\nstatus: accepted\ndate: 2020-06-01\n---\n# A\n\nText\n"
    (tmp_path / "0001-good.md").write_text(good)
    (tmp_path / "0002-bytes.md").write_bytes(b"# B\n\xff\n")
    (tmp_path / "0003-open.md").write_text("---\nstatus: accepted\n\n# C\n")
    (tmp_path / "0004-empty.md").write_text("\n")
    (tmp_path / "0005-day.md").write_text(good.replace("06-01", "02-31"))
    reading = adr.read(tmp_path, adr.Dates.DOCUMENT)
    assert {file: reason.split(";")[0] for file, reason in reading.problems} == {
        "0002-bytes.md": "it is not UTF-8 (byte 4)",
        "0003-open.md": "its front matter has no end (a line with ---)",
        "0004-empty.md": "it is empty",
        "0005-day.md": "2020-02-31 is no date that exists",
    }
    assert {o.attributes["identity_key"] for o in reading.documents} == {"adr/0001", "adr/0005"}
    assert reading.families == 2


def test_our_own_decisions_can_be_read():
    """ADR 1: every file of docs/adr is a record that the importer reads, with a status, and none is a problem."""
    folder = Path(__file__).parents[2] / "docs" / "adr"
    reading = adr.read(folder, adr.Dates.DOCUMENT)
    keys = {item.attributes["identity_key"] for item in reading.documents}
    assert not reading.problems
    assert keys == {f"adr/{int(path.name[:4]):04d}" for path in folder.glob("*.md")}
