"""Typed errors: what a service raises, and the one table that turns a reason into a gRPC status.

The tree::

    Exception
    └── DomainError            reason, message, metadata, fields: everything a client needs to react
        └── InvalidRequest     INVALID_FIELD, one or more fields at fault

Any other exception that has the four attributes of ``TypedError`` (the ledger's pure domain has its own, because
it may import nothing) is treated alike. Everything else that leaves a handler is a bug: the boundary masks it.

Nothing outside this file and the boundary knows a gRPC status code. A service that calls another one turns the
failure back into a ``DomainError`` with :func:`from_rpc_error`, so that the caller sees the first typed reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

import grpc
from decisionssearch.common.v1 import errors_pb2
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships without stubs

ERROR_DOMAIN: Final = "decisionssearch"
DETAILS_KEY: Final = "grpc-status-details-bin"

# Clients in C, Python, Ruby and others refuse response metadata above 8 KiB, and base64 adds a third.
_MAX_STATUS_BYTES: Final = 4_800
_MAX_MESSAGE_CHARS: Final = 500
_MAX_VALUE_CHARS: Final = 300


class Reason(StrEnum):
    """Why a call was refused: the names of ``decisionssearch.common.v1.ErrorReason``, described there."""

    INVALID_FIELD = "INVALID_FIELD"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    PAGE_TOKEN_MISMATCH = "PAGE_TOKEN_MISMATCH"  # noqa: S105 - a reason, not a password
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    APPROVER_NOT_ALLOWED = "APPROVER_NOT_ALLOWED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    HEAD_MOVED = "HEAD_MOVED"
    WRITE_CONTENTION = "WRITE_CONTENTION"
    PROPOSAL_STATUS = "PROPOSAL_STATUS"
    APPROVAL_MISSING = "APPROVAL_MISSING"
    PREVIEW_HASH_MISMATCH = "PREVIEW_HASH_MISMATCH"
    EVIDENCE_INSUFFICIENT = "EVIDENCE_INSUFFICIENT"
    STATE_CONFLICT = "STATE_CONFLICT"
    RELATION_CYCLE = "RELATION_CYCLE"
    LEASE_LOST = "LEASE_LOST"
    MODEL_MISMATCH = "MODEL_MISMATCH"
    NOT_FRESH_ENOUGH = "NOT_FRESH_ENOUGH"
    DEPENDENCY_UNAVAILABLE = "DEPENDENCY_UNAVAILABLE"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    OVERLOADED = "OVERLOADED"
    INTEGRITY = "INTEGRITY"
    BUG = "BUG"
    DEADLINE = "DEADLINE"


_NAMES: Final[frozenset[str]] = frozenset(r.value for r in Reason)

STATUS: Final[Mapping[Reason, grpc.StatusCode]] = MappingProxyType(
    {
        Reason.INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.LIMIT_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.REQUEST_ID_REUSED: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.PAGE_TOKEN_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
        Reason.APPROVER_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
        Reason.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
        Reason.HEAD_MOVED: grpc.StatusCode.ABORTED,
        Reason.WRITE_CONTENTION: grpc.StatusCode.ABORTED,
        Reason.PROPOSAL_STATUS: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.APPROVAL_MISSING: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.PREVIEW_HASH_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.EVIDENCE_INSUFFICIENT: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.STATE_CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.RELATION_CYCLE: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.LEASE_LOST: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.MODEL_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.NOT_FRESH_ENOUGH: grpc.StatusCode.UNAVAILABLE,
        Reason.DEPENDENCY_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
        Reason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
        Reason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.INTEGRITY: grpc.StatusCode.DATA_LOSS,
        Reason.BUG: grpc.StatusCode.INTERNAL,
        Reason.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
"""The one table: how a client must react to each reason."""

# What a bare status of the transport means when it carries no details of ours.
_TRANSPORT: Final[Mapping[grpc.StatusCode, Reason]] = MappingProxyType(
    {
        grpc.StatusCode.UNAVAILABLE: Reason.DEPENDENCY_UNAVAILABLE,
        # By the other side: it closes. When the caller itself gives up there is no answer to translate.
        grpc.StatusCode.CANCELLED: Reason.DEPENDENCY_UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED: Reason.DEADLINE,
        grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND: Reason.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS: Reason.ALREADY_EXISTS,
        grpc.StatusCode.INVALID_ARGUMENT: Reason.INVALID_FIELD,
        grpc.StatusCode.FAILED_PRECONDITION: Reason.STATE_CONFLICT,
        grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.OVERLOADED,
        grpc.StatusCode.DATA_LOSS: Reason.INTEGRITY,
    }
)

_CODES: Final[Mapping[int, grpc.StatusCode]] = MappingProxyType({code.value[0]: code for code in grpc.StatusCode})


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One wrong field of a request: where, what is wrong and how to mend it."""

    field: str
    description: str


class FieldProblemLike(Protocol):
    """The shape of a field problem, whoever defines it."""

    @property
    def field(self) -> str:
        """Path of the field in the request."""

    @property
    def description(self) -> str:
        """What is wrong and how to mend it."""


@runtime_checkable
class TypedError(Protocol):
    """The shape that the boundary reads; ``reason`` is a :class:`Reason` or its name."""

    @property
    def reason(self) -> str:
        """Name of the reason."""

    @property
    def message(self) -> str:
        """What happened and what to do next."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Details named by the comment of the reason."""

    @property
    def fields(self) -> Sequence[FieldProblemLike]:
        """Fields at fault, when the reason is about fields."""


class DomainError(Exception):
    """A refusal with a reason that a client can act on.

    Args:
        reason: Why; decides the gRPC status.
        message: What happened and what to do next, in a sentence fit for a client: no content, no driver text.
        metadata: Details as the comment of the reason in ``errors.proto`` names them.
        fields: The fields at fault.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        fields: Sequence[FieldProblemLike] = (),
    ) -> None:
        super().__init__(message)
        self.reason = Reason(reason)
        self.message = message
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        self.fields: tuple[FieldProblem, ...] = tuple(FieldProblem(f.field, f.description) for f in fields)

    @property
    def status(self) -> grpc.StatusCode:
        """The gRPC status of the reason."""
        return STATUS[self.reason]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason}, {self.message!r}, metadata={dict(self.metadata)!r})"


class InvalidRequest(DomainError):  # noqa: N818 - reads as what it is; the base says Error
    """INVALID_FIELD: one or more fields are missing, malformed or out of range."""

    def __init__(self, fields: Sequence[FieldProblemLike]) -> None:
        if not fields:
            raise ValueError("an invalid request names at least one field")
        first = fields[0]
        more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
        super().__init__(
            Reason.INVALID_FIELD,
            f"{first.field}: {first.description}{more}",
            metadata={"field": first.field},
            fields=fields,
        )


def invalid(field: str, description: str) -> InvalidRequest:
    """Return the error for one wrong field."""
    return InvalidRequest([FieldProblem(field, description)])


def limit_exceeded(field: str, limit: int, actual: int, unit: str = "") -> DomainError:
    """Return the error for a field, list or message over its limit."""
    what = f" {unit}" if unit else ""
    description = f"has {actual}{what}; the limit is {limit}"
    return DomainError(
        Reason.LIMIT_EXCEEDED,
        f"{field or 'message'}: {description}",
        metadata={"field": field, "limit": str(limit), "actual": str(actual)},
        fields=[FieldProblem(field, description)],
    )


def not_found(resource: str) -> DomainError:
    """Return the error for a resource that does not exist, for a caller who may know that."""
    return DomainError(Reason.NOT_FOUND, f"{resource} does not exist", metadata={"resource": resource})


def already_exists(message: str, **metadata: str) -> DomainError:
    """Return the error for a unique name that is taken."""
    return DomainError(Reason.ALREADY_EXISTS, message, metadata=metadata)


def permission_denied(project: str, role: str) -> DomainError:
    """Return the refusal for a missing role; the same whether or not the project exists."""
    resource = project if project.startswith("projects/") else f"projects/{project}"
    return DomainError(
        Reason.PERMISSION_DENIED,
        f"this needs the role {role} in {resource}; ask an admin of the project for it",
        metadata={"project": resource, "role": role},
    )


def unauthenticated(message: str = "send a valid token as 'authorization: Bearer TOKEN'") -> DomainError:
    """Return the refusal for a missing, unknown or expired credential; it never says which."""
    return DomainError(Reason.UNAUTHENTICATED, message, metadata={"scheme": "Bearer"})


def dependency_unavailable(dependency: str, message: str = "") -> DomainError:
    """Return the error for a store, index or model provider that did not answer."""
    return DomainError(
        Reason.DEPENDENCY_UNAVAILABLE,
        message or f"{dependency} did not answer; try again later",
        metadata={"dependency": dependency},
    )


def shutting_down() -> DomainError:
    """Return the error that a stopping server answers with."""
    return DomainError(
        Reason.SHUTTING_DOWN, "the server is shutting down; try again", metadata={"retry": "same_request"}
    )


def overloaded(limit: str, value: int) -> DomainError:
    """Return the error for too many calls or waiting writes."""
    return DomainError(
        Reason.OVERLOADED,
        f"{limit} ({value}) is reached; try again later",
        metadata={"limit": limit, "value": str(value)},
    )


def deadline_exceeded() -> DomainError:
    """Return the error for work that was stopped because the caller's deadline passed."""
    return DomainError(Reason.DEADLINE, "the deadline passed before the work was done")


def as_domain_error(error: BaseException) -> DomainError | None:
    """Return the error as a ``DomainError`` when it is a typed one, of ours or of the same shape; else None."""
    if isinstance(error, DomainError):
        return error
    # isinstance on a data protocol only looks for the names, so each value is checked as well.
    if not isinstance(error, TypedError) or not isinstance(error.reason, str) or error.reason not in _NAMES:
        return None
    return DomainError(Reason(error.reason), error.message, metadata=error.metadata, fields=error.fields)


# --- On the wire ----------------------------------------------------------------------------------------------------


def to_status(error: DomainError) -> status_pb2.Status:
    """Return the ``google.rpc.Status`` of an error, with ErrorInfo and, where they fit, the other standard details."""
    shown = len(error.fields)
    while True:
        status = _status(error, shown)
        if shown == 0 or status.ByteSize() <= _MAX_STATUS_BYTES:
            return status
        shown = shown * 3 // 4


def _status(error: DomainError, shown: int) -> status_pb2.Status:
    code = STATUS[error.reason]
    metadata = {key: _clip(value, _MAX_VALUE_CHARS) for key, value in error.metadata.items()}
    details = [_any(error_details_pb2.ErrorInfo(reason=error.reason.value, domain=ERROR_DOMAIN, metadata=metadata))]
    if error.fields:
        problems = [
            error_details_pb2.BadRequest.FieldViolation(
                field=_clip(p.field, _MAX_VALUE_CHARS), description=_clip(p.description, _MAX_VALUE_CHARS)
            )
            for p in error.fields[:shown]
        ]
        if shown < len(error.fields):
            rest = f"{len(error.fields) - shown} more fields are wrong; mend these first"
            problems.append(error_details_pb2.BadRequest.FieldViolation(field="", description=rest))
        details.append(_any(error_details_pb2.BadRequest(field_violations=problems)))
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        violation = error_details_pb2.PreconditionFailure.Violation(
            type=error.reason.value,
            subject=next(iter(metadata.values()), ""),
            description=_clip(error.message, _MAX_VALUE_CHARS),
        )
        details.append(_any(error_details_pb2.PreconditionFailure(violations=[violation])))
    return status_pb2.Status(code=code.value[0], message=_clip(error.message, _MAX_MESSAGE_CHARS), details=details)


def from_rpc_error(error: grpc.RpcError, dependency: str = "service") -> DomainError:
    """Return the typed error that a called service answered with.

    An answer without details of ours is a fault of the transport or a foreign server; its text is not passed on.
    A bug of the called service stays its bug (with its incident id); it is not blamed on the caller's request.
    """
    code, details = _code_of(error), _status_of(error)
    if details is not None:
        typed = from_status(details)
        if typed is not None:
            return typed
    reason = _TRANSPORT.get(code)
    if reason is None:
        return DomainError(
            Reason.BUG, f"{dependency} answered {code.name} without a reason", metadata={"dependency": dependency}
        )
    if reason is Reason.DEADLINE:
        return deadline_exceeded()
    return DomainError(reason, f"{dependency} answered {code.name}", metadata={"dependency": dependency})


def from_status(status: status_pb2.Status) -> DomainError | None:
    """Return the typed error in a ``google.rpc.Status``; None when it has no ErrorInfo of ours."""
    info: error_details_pb2.ErrorInfo | None = None
    fields: list[FieldProblem] = []
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            candidate = error_details_pb2.ErrorInfo()
            detail.Unpack(candidate)
            info = candidate if candidate.domain == ERROR_DOMAIN else info
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            detail.Unpack(bad)
            fields += [FieldProblem(v.field, v.description) for v in bad.field_violations]
    if info is None or info.reason not in _NAMES:
        return None
    return DomainError(Reason(info.reason), status.message, metadata=dict(info.metadata), fields=fields)


def to_item_error(error: DomainError) -> errors_pb2.ItemError:
    """Return the failure of one item of a batch."""
    return errors_pb2.ItemError(
        code=STATUS[error.reason].value[0],
        reason=errors_pb2.ErrorReason.Value(f"ERROR_REASON_{error.reason.value}"),
        message=error.message,
        metadata=dict(error.metadata),
        fields=[errors_pb2.FieldProblem(field=p.field, description=p.description) for p in error.fields],
    )


def from_item_error(item: errors_pb2.ItemError) -> DomainError:
    """Return the typed error of one item of a batch."""
    known = errors_pb2.ErrorReason.DESCRIPTOR.values_by_number.get(item.reason)
    name = known.name.removeprefix("ERROR_REASON_") if known is not None else ""
    # A newer server may know a reason that this client does not: its code still says how to react.
    reason = Reason(name) if name in _NAMES else _TRANSPORT.get(status_code(item.code), Reason.BUG)
    return DomainError(
        reason,
        item.message,
        metadata=dict(item.metadata),
        fields=[FieldProblem(p.field, p.description) for p in item.fields],
    )


def _code_of(error: grpc.RpcError) -> grpc.StatusCode:
    # grpc.RpcError is an empty base class: the concrete errors of both APIs have code() and trailing_metadata().
    code = error.code() if hasattr(error, "code") else None
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _status_of(error: grpc.RpcError) -> status_pb2.Status | None:
    # Any: the two APIs type their metadata differently, and both give pairs.
    metadata: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in metadata or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status()
            try:
                status.ParseFromString(value)
            except DecodeError:
                return None
            return status
    return None


def status_code(number: int) -> grpc.StatusCode:
    """Return the status with that number; UNKNOWN for one that gRPC does not define."""
    return _CODES.get(number, grpc.StatusCode.UNKNOWN)


def _any(
    message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | error_details_pb2.PreconditionFailure,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
