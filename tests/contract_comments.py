"""What the comments of the contracts ask of the fields of requests: required, how many, how long, from what to what."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]  # ships without stubs

PROTO: Final = Path(__file__).resolve().parents[1] / "proto"

_RANGE: Final = re.compile(r"(?:^|[\s,])([\d,]+) to ([\d,]+)(?!\s*MiB)(?:$|[\s;.,])")
_UP_TO: Final = re.compile(r"\b(?:up to|at most) ([\d,]+)(?!\s*MiB)(?:$|[\s;.,])")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the comment of a field asks."""

    comment: str
    required: bool
    low: int | None = None
    high: int | None = None


@cache
def asked() -> Mapping[str, Asked]:
    """Return what is asked of every field of every message, by its full name."""
    return {name: _read(comment) for name, comment in _comments().items()}


def _read(comment: str) -> Asked:
    required = bool(re.search(r"\bRequired\b", comment))
    found = _RANGE.search(comment)
    if found is not None:
        return Asked(comment, required, _number(found[1]), _number(found[2]))
    found = _UP_TO.search(comment)
    return Asked(comment, required, None, _number(found[1]) if found is not None else None)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _comments() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set.binpb"
        files = [str(file.relative_to(PROTO)) for file in sorted(PROTO.glob("decisionssearch/**/*.proto"))]
        known = str(Path(protoc.__file__).parent / "_proto")
        code = protoc.main(
            ["protoc", f"-I{PROTO}", f"-I{known}", "--include_source_info", f"--descriptor_set_out={out}", *files]
        )
        if code != 0:
            raise RuntimeError("the contracts do not compile")
        read = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    found: dict[str, str] = {}
    for file in read.file:
        by_path = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
        for index, message in enumerate(file.message_type):
            for number, field in enumerate(message.field):
                # 4: messages of a file; 2: fields of a message.
                comment = by_path.get((4, index, 2, number), "")
                found[f"{file.package}.{message.name}.{field.name}"] = " ".join(comment.split())
    return found
