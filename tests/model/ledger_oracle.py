"""A naive ledger of one project to compare the real one with: tables repainted by hand, everything kept.

Written from the contracts, without any rule of the ledger's own code. Moments are whole ticks. It says beforehand why a
change has to be refused, is told which ids the ledger gave, and then answers for every point of both axes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.model.timeline_table import ENDED_FOR_GOOD, FOREVER, Table

SYMMETRIC = {"RELATED_TO"}
ACYCLIC = {"DEPENDS_ON", "REFINES", "DEPRECATES"}
FLAGGING = {"DEPENDS_ON", "REFINES"}
CAUSES = {
    "supersede": "SUPERSEDED",
    "rollback": "ROLLED_BACK",
    "invalidate": "INVALIDATED",
    "deprecate": "DEPRECATED",
}
"""Changes that pull the ground from under what builds on a family."""
REVIEWING = {"update", "supersede", "rollback", "invalidate", "deprecate"}
"""Changes that are a review of the family itself."""


@dataclass(frozen=True)
class Command:
    """A change as somebody asks for it; ticks, None where nothing is said."""

    what: str
    branch: str
    family: str = ""
    other: str = ""
    """The replacement, the other end of a link, or what a new family refines."""
    revision: str = ""
    relation: str = ""
    start: int | None = None
    stop: int | None = None
    title: str = ""
    standing: str = "ADOPTED"
    key: str = ""
    kind: str = ""
    scope: str = "SEMANTIC"


@dataclass
class Link:
    """A relation."""

    ident: str
    kind: str
    source: str
    target: str
    branch: str
    start: int
    stop: int
    recorded: int
    retired_from: int = FOREVER
    retired_recorded: int = FOREVER

    @property
    def active(self) -> bool:
        """Whether it was never taken back."""
        return self.retired_recorded == FOREVER

    def holds(self, valid: int, known: int) -> bool:
        """Whether it holds at a point of both axes."""
        stop = min(self.stop, self.retired_from if known >= self.retired_recorded else FOREVER)
        return self.recorded <= known and self.start <= valid < stop


@dataclass
class Flag:
    """Says that a family needs a review."""

    family: str
    cause_family: str
    cause: str
    raised: int
    cleared: int = FOREVER


@dataclass
class Memory:
    """A family with all that was ever known of it."""

    ident: str
    branch: str
    scope: str
    table: Table
    head: str = ""
    ended_from: int | None = None
    revisions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Title and standing, in order of publication."""
    moved: list[int] = field(default_factory=list)
    """Positions that changed its head."""
    known: list[tuple[int, Table, int | None, str]] = field(default_factory=list)
    """What was known from when on."""

    def adopted_until(self) -> int:
        """Until when anything adopted of it holds."""
        return max((stop for name, _, stop, _ in self.table.runs() if self.revisions[name][1] == "ADOPTED"), default=-1)

    def seen(self) -> tuple[str, int]:
        """What somebody who proposes a change has seen."""
        return self.head, self.moved[-1]


Answer = tuple[str, str, tuple[int, int], list[tuple[str, int, int]], list[str], list[tuple[str, str]], int]
"""State, revision (where nothing holds, the head), validity, scheduled rows, replacements, open flags, last change."""


@dataclass
class Oracle:
    """One project."""

    ticks: int
    memories: dict[str, Memory] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    recorded: list[int] = field(default_factory=list)
    """When each commit was recorded."""
    commits: list[tuple[str, str, str]] = field(default_factory=list)
    """Of each commit: what, and the revision and the relation that it made or took back."""

    def moment(self, now: int) -> int:
        """When a commit that is made now is recorded: never at or before the last one."""
        return max([now, *(last + 1 for last in self.recorded[-1:])])

    def on(self, branch: str) -> list[str]:
        """Families of a branch."""
        return sorted(ident for ident, memory in self.memories.items() if memory.branch == branch)

    # --- What may be asked for ----------------------------------------------------------------------------------------

    def resolved(self, command: Command, now: int) -> Command:
        """The change as it is proposed: an expiry is about what covers now, else about the last revision."""
        memory = self._published(command.family, command.branch)
        if command.what != "expire" or memory is None:
            return command
        runs = memory.table.runs()
        covering = [name for name, start, stop, _ in runs if start <= now < stop]
        return replace(command, revision=covering[0] if covering else (runs[-1][0] if runs else "none"))

    def depends_on(self, command: Command) -> dict[str, tuple[str, int]]:
        """The heads that a proposal is made on."""
        named = [] if command.what in {"create", "unlink"} else [command.family, command.other]
        return {ident: self.memories[ident].seen() for ident in named if ident}

    def problems(self, command: Command, at: int) -> set[str]:
        """Every reason to refuse a change at a moment; empty when it has to be accepted."""
        found: set[str] = set()
        start = at if command.start is None else command.start
        stop = FOREVER if command.stop is None else command.stop
        if command.what != "expire" and stop <= start:
            found.add("INVALID_FIELD")
        if command.what in {"create", "refine"}:
            if command.key in self.keys:
                found.add("ALREADY_EXISTS")
            if command.what == "refine" and self._published(command.other, command.branch) is None:
                found.add("STATE_CONFLICT")
            return found
        if command.what == "unlink":
            link = next((one for one in self.links if one.ident == command.relation), None)
            if link is None or link.branch != command.branch:
                found.add("NOT_FOUND")
            elif not link.active:
                found.add("STATE_CONFLICT")
            return found
        memory = self._published(command.family, command.branch)
        other = self._published(command.other, command.branch) if command.other else None
        if memory is None or (command.other and other is None):
            return {*found, "STATE_CONFLICT"}
        if command.what == "link":
            return found | self._link_problems(command, start)
        if command.what == "deprecate":
            assert other is not None
            found |= self._pair_problems("DEPRECATES", command.other, command.family, command.branch, again=True)
            if other.adopted_until() <= start:
                found.add("STATE_CONFLICT")
        return found | self._time_problems(memory, command, at)

    def _time_problems(self, memory: Memory, command: Command, at: int) -> set[str]:
        found: set[str] = set()
        if command.what == "expire":
            stop = FOREVER if command.stop is None else command.stop
            span = memory.table.span(command.revision)
            if span is not None and stop <= span[0]:
                found.add("INVALID_FIELD")
            gone = memory.table.own_reason.get(command.revision) in ENDED_FOR_GOOD
            if gone or (memory.ended_from is not None and stop > memory.ended_from):
                found.add("STATE_CONFLICT")
        tried = Memory("", "", "", memory.table.copy(), revisions=dict(memory.revisions))
        if not self._repaint(tried, command, at, "new"):
            # An end that is no end was named already.
            return found or {"STATE_CONFLICT"}
        if command.what in {"update", "supersede", "rollback"}:
            start = at if command.start is None else command.start
            stop = FOREVER if command.stop is None else command.stop
            last = memory.table.runs()[-1:]
            same = memory.revisions[memory.head] == tried.revisions["new"]
            if same and last and last[0][1] <= start and last[0][2] == stop:
                found.add("STATE_CONFLICT")
        if command.what not in {"invalidate", "deprecate"}:
            # What was replaced does not come back by a change of its own.
            since = [one.start for one in self.links if one.active and one.kind == "DEPRECATES"
                     and one.target == memory.ident and one.branch == command.branch]  # fmt: skip
            if any(tried.adopted_until() > begin for begin in since):
                found.add("STATE_CONFLICT")
        return found

    def _link_problems(self, command: Command, start: int) -> set[str]:
        found = self._pair_problems(command.kind, command.family, command.other, command.branch, again=False)
        if command.kind == "DEPRECATES" and self.memories[command.other].adopted_until() > start:
            found.add("STATE_CONFLICT")
        return found

    def _pair_problems(self, kind: str, source: str, target: str, branch: str, *, again: bool) -> set[str]:
        scopes = self.memories[source].scope, self.memories[target].scope
        learned = kind == "LEARNED_FROM" and (scopes[0] != "EPISODIC" or scopes[1] == "EPISODIC")
        if source == target or learned or (kind == "DEPRECATES" and scopes[0] != scopes[1]):
            return {"INVALID_FIELD"}
        there = [one for one in self.links if one.active and one.kind == kind and one.branch == branch]
        pairs = {(one.source, one.target) for one in there}
        if (source, target) in pairs or (kind in SYMMETRIC and (target, source) in pairs):
            return set() if again else {"ALREADY_EXISTS"}
        reached, before = {target}, set()
        while reached != before:
            before = set(reached)
            reached |= {end for begin, end in pairs if begin in reached}
        return {"RELATION_CYCLE"} if kind in ACYCLIC and source in reached else set()

    # --- What is done -------------------------------------------------------------------------------------------------

    def do(self, command: Command, at: int, *, family: str, revision: str, relation: str) -> None:
        """Make a change that was accepted, with the ids that the ledger gave."""
        position = len(self.recorded) + 1
        self.recorded.append(at)
        self.commits.append((command.what, revision, relation))
        start = at if command.start is None else command.start
        stop = FOREVER if command.stop is None else command.stop
        if command.what in {"create", "refine"}:
            self.memories[family] = Memory(family, command.branch, command.scope, Table(self.ticks))
            if command.key:
                self.keys[command.key] = family
        if command.what == "refine":
            self.links.append(Link(relation, "REFINES", family, command.other, command.branch, start, FOREVER, at))
        if command.what == "link":
            ends = (command.family, command.other)
            self.links.append(Link(relation, command.kind, *ends, command.branch, start, stop, at))
        elif command.what == "unlink":
            link = next(one for one in self.links if one.ident == command.relation)
            link.retired_from, link.retired_recorded = max(start, link.start), at
        else:
            self._change(self.memories[family], command, at, revision, position)
        if command.what == "deprecate" and not any(
            one.active and (one.kind, one.source, one.target) == ("DEPRECATES", command.other, command.family)
            for one in self.links
        ):
            ends = (command.other, command.family)
            self.links.append(Link(relation, "DEPRECATES", *ends, command.branch, start, FOREVER, at))

    def _change(self, memory: Memory, command: Command, at: int, revision: str, position: int) -> None:
        changed = self._repaint(memory, command, at, revision)
        assert changed
        memory.moved.append(position)
        if command.what in {"invalidate", "deprecate"}:
            memory.ended_from = at if command.start is None else command.start
        elif revision:
            memory.ended_from = None
        runs = memory.table.runs()
        memory.head = revision or (runs[-1][0] if runs else memory.head)
        memory.known.append((at, memory.table.copy(), memory.ended_from, memory.head))
        if command.what in REVIEWING:
            for flag in self.flags:
                if flag.family == memory.ident and flag.cleared == FOREVER:
                    flag.cleared = position
        if command.what in CAUSES:
            above = {one.source for one in self.links
                     if one.active and one.kind in FLAGGING and one.target == memory.ident}  # fmt: skip
            self.flags += [Flag(ident, memory.ident, CAUSES[command.what], position) for ident in sorted(above)]

    @staticmethod
    def _repaint(memory: Memory, command: Command, at: int, revision: str) -> bool:
        """Repaint the table; says whether that was possible."""
        start = at if command.start is None else command.start
        stop = FOREVER if command.stop is None else command.stop
        match command.what:
            case "create" | "refine" | "update" | "supersede" | "rollback":
                old = memory.revisions.get(command.revision)
                memory.revisions[revision] = old or (command.title, command.standing)
                memory.table.publish(revision, start, stop)
                return True
            case "invalidate":
                return memory.table.end(start, "INVALIDATED")
            case "deprecate":
                return memory.table.end(start, "DEPRECATED")
            case "expire":
                return memory.table.expire(command.revision, stop)
            case "cancel":
                return memory.table.cancel(command.revision, at)
        raise AssertionError(command.what)

    def _published(self, ident: str, branch: str) -> Memory | None:
        memory = self.memories.get(ident)
        return memory if memory is not None and memory.branch == branch else None

    # --- What is answered ---------------------------------------------------------------------------------------------

    def answer(self, ident: str, valid: int, known: int) -> Answer | None:
        """What a family answers at a point of both axes; None when nothing of it was known."""
        memory = self.memories[ident]
        told = [one for one in memory.known if one[0] <= known]
        if not told:
            return None
        _, table, ended, head = told[-1]
        position = sum(recorded <= known for recorded in self.recorded)
        runs = table.runs()
        started = [run for run in runs if run[1] <= valid]
        later = [(name, start, stop) for name, start, stop, _ in runs if start > valid]
        current = started[-1][:3] if started else later.pop(0) if later else None
        replacing = [one.source for one in self.links
                     if one.kind == "DEPRECATES" and one.target == ident and one.holds(valid, known)]  # fmt: skip
        if current is None:
            state = "SUPERSEDED" if replacing else "NOT_IN_FORCE"
            if not replacing and ended is not None and ended <= valid:
                state = "INVALIDATED"
        else:
            state = self._state(memory, current, valid, started[-1][3] if started else "", bool(replacing))
        open_flags = [one for one in self.flags if one.family == ident and one.raised <= position < one.cleared]
        at = [*memory.moved, *(p for one in self.flags if one.family == ident for p in (one.raised, one.cleared))]
        return (
            state,
            current[0] if current else head,
            current[1:] if current else (0, 0),
            later,
            replacing,
            [(one.cause_family, one.cause) for one in open_flags],
            max(p for p in at if p <= position),
        )

    @staticmethod
    def _state(memory: Memory, run: tuple[str, int, int], valid: int, why: str, replaced: bool) -> str:
        name, start, stop = run
        if valid < start:
            return "SCHEDULED"
        if replaced:
            return "SUPERSEDED"
        if valid >= stop:
            return {"REPLACED": "SUPERSEDED", "DEPRECATED": "SUPERSEDED"}.get(why, why)
        return "ACTIVE" if memory.revisions[name][1] == "ADOPTED" else "NOT_IN_FORCE"
