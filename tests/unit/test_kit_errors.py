"""The one table of errors, and what crosses the wire."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from decisionssearch.common.v1 import errors_pb2
from google.rpc import status_pb2

from service_kit import errors
from service_kit.errors import STATUS, DomainError, FieldProblem, InvalidRequest, Reason

PROTO = Path(__file__).parents[2] / "proto/decisionssearch/common/v1/errors.proto"


def test_reasons_are_those_of_the_contract() -> None:
    """S3: the enum in Python and the enum in the contract have the same names."""
    names = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name} - {
        "UNSPECIFIED"
    }
    assert {reason.value for reason in Reason} == names
    assert {reason.name for reason in Reason} == names


def test_the_table_says_what_the_contract_promises() -> None:
    """S3: every reason has the status that its comment in errors.proto names."""
    text = PROTO.read_text(encoding="utf-8")
    promised = {
        reason: code
        for code, reason in re.findall(r"// ([A-Z_]+)\. (?:[^\n]*\n\s+//)*[^\n]*\n\s+ERROR_REASON_(\w+) =", text)
    }
    assert promised == {reason.value: STATUS[reason].name for reason in Reason}


def test_an_invalid_request_lists_every_field() -> None:
    """S4: several problems travel together, and the message names the first."""
    error = InvalidRequest([FieldProblem("title", "is required"), FieldProblem("url", "is not a URL")])
    assert error.reason is Reason.INVALID_FIELD
    assert error.message == "title: is required (and 1 more)"
    assert errors.from_status(errors.to_status(error)).fields == error.fields  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="at least one"):
        InvalidRequest([])


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_survives_status_and_item(reason: Reason) -> None:
    """S3: an error is the same after a status and after an item of a batch."""
    error = DomainError(reason, "é assim", metadata={"a": "1"}, fields=[FieldProblem("f", "d")])
    for back in (errors.from_status(errors.to_status(error)), errors.from_item_error(errors.to_item_error(error))):
        assert back is not None
        assert (back.reason, back.message, back.metadata, back.fields) == (
            error.reason,
            error.message,
            error.metadata,
            error.fields,
        )
    assert errors.to_item_error(error).code == STATUS[reason].value[0]


def test_an_item_error_of_a_newer_server_is_not_lost() -> None:
    """A reason that this version does not know keeps its sentence and the reaction that its code asks for."""
    item = errors_pb2.ItemError(code=9, message="newer")
    item.reason = 999  # type: ignore[assignment]
    back = errors.from_item_error(item)
    assert (back.status, back.message) == (grpc.StatusCode.FAILED_PRECONDITION, "newer")


def test_the_metadata_of_an_error_cannot_change_later() -> None:
    """An error is a value: what its maker does with the mapping afterwards does not reach it."""
    given = {"a": "1"}
    error = DomainError(Reason.NOT_FOUND, "x", metadata=given)
    given["a"] = "2"
    assert error.metadata == {"a": "1"}
    with pytest.raises(TypeError):
        error.metadata["a"] = "3"  # type: ignore[index]


class ShapedError(Exception):
    """Looks like a typed error."""

    def __init__(self, reason: Any) -> None:
        super().__init__("shaped")
        self.reason, self.message, self.metadata, self.fields = reason, "shaped", {"k": "v"}, ()


def test_only_typed_errors_are_taken_for_typed() -> None:
    """S3: an exception that merely has a ``reason`` is a bug and gets masked."""
    found = errors.as_domain_error(ShapedError("STATE_CONFLICT"))
    assert found is not None
    assert (found.reason, found.metadata) == (Reason.STATE_CONFLICT, {"k": "v"})
    assert errors.as_domain_error(ShapedError("NO_SUCH_REASON")) is None
    assert errors.as_domain_error(ShapedError(7)) is None
    assert errors.as_domain_error(UnicodeDecodeError("utf-8", b"x", 0, 1, "invalid")) is None
    assert errors.as_domain_error(ValueError("x")) is None


def rpc_error(code: grpc.StatusCode, trailing: bytes | None) -> grpc.aio.AioRpcError:
    """Return what a failed call raises."""
    pairs = ((errors.DETAILS_KEY, trailing),) if trailing is not None else ()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*pairs), "secret driver text")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, Reason.DEPENDENCY_UNAVAILABLE),
        (grpc.StatusCode.CANCELLED, Reason.DEPENDENCY_UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Reason.DEADLINE),
        (grpc.StatusCode.UNKNOWN, Reason.BUG),
        (grpc.StatusCode.UNIMPLEMENTED, Reason.BUG),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.OVERLOADED),
    ],
)
@pytest.mark.parametrize("trailing", [None, b"\xff\xff", status_pb2.Status(message="x").SerializeToString()])
def test_a_bare_status_gets_a_reason_and_shows_no_text(
    code: grpc.StatusCode, reason: Reason, trailing: bytes | None
) -> None:
    """S3: an answer without details of ours becomes a typed error without the transport's text."""
    error = errors.from_rpc_error(rpc_error(code, trailing), "index")
    assert error.reason is reason
    assert "secret" not in error.message


def test_details_of_another_domain_are_not_ours() -> None:
    """An ErrorInfo of a foreign system with a reason of the same name is not taken for ours."""
    status = errors.to_status(errors.not_found("projects/b"))
    foreign = status_pb2.Status(code=status.code)
    detail = foreign.details.add()
    detail.type_url = status.details[0].type_url
    detail.value = status.details[0].value.replace(b"decisionssearch", b"somebodyelse123")
    assert errors.from_status(foreign) is None


def test_helpers_name_what_a_client_needs() -> None:
    """S4: a limit names field, limit and size; a denial is the same for every project; a dependency is named."""
    assert errors.limit_exceeded("a.b", 5, 9).metadata == {"field": "a.b", "limit": "5", "actual": "9"}
    denied = errors.permission_denied("billing", "reviewer")
    assert denied.metadata == {"project": "projects/billing", "role": "reviewer"}
    assert errors.permission_denied("projects/billing", "reviewer").metadata == denied.metadata
    assert errors.dependency_unavailable("index").metadata == {"dependency": "index"}
    assert errors.unauthenticated().metadata == {"scheme": "Bearer"}
    assert errors.shutting_down().status is grpc.StatusCode.UNAVAILABLE
    assert errors.overloaded("max_waiting_applies", 1000).metadata["value"] == "1000"
    assert errors.already_exists("taken", identity_key="adr/7").metadata == {"identity_key": "adr/7"}
