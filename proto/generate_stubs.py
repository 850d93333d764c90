"""Generate the Python stubs of every contract beside its .proto file.

Runs as a hatchling build hook (so ``pip install -e .`` makes the stubs) and as a program
(``python proto/generate_stubs.py [OUTPUT_DIR]``, which ``make proto`` calls). The stubs are not committed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent


def generate(output: Path = ROOT) -> list[Path]:
    """Run protoc over every contract and return the files that it wrote below ``output``."""
    # Imported here: the build environment has it, an installed runtime does not need it.
    from grpc_tools import _proto as well_known
    from grpc_tools import protoc

    contracts = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("decisionssearch/**/*.proto"))
    include = Path(next(iter(well_known.__path__)))
    output.mkdir(parents=True, exist_ok=True)
    # The mypy plugin is a console script beside this interpreter; protoc looks for it on the PATH.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    code = protoc.main(
        [
            "protoc",
            f"-I{ROOT}",
            f"-I{include}",
            f"--python_out={output}",
            f"--grpc_python_out={output}",
            f"--mypy_out={output}",
            f"--mypy_grpc_out={output}",
            *contracts,
        ]
    )
    if code != 0:
        raise SystemExit(f"protoc failed with exit code {code}")
    # A file without a service gets an empty gRPC module; it would only be noise for importers.
    for contract in contracts:
        if not contract.endswith("_service.proto"):
            stem = output / contract.removesuffix(".proto")
            for suffix in ("_pb2_grpc.py", "_pb2_grpc.pyi"):
                stem.with_name(stem.name + suffix).unlink(missing_ok=True)
    return sorted(p for p in output.rglob("*_pb2*") if p.suffix in {".py", ".pyi"})


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # Run as a program outside a build: the hook is not needed.
    pass
else:

    class StubsBuildHook(BuildHookInterface[Any]):
        """Makes the stubs before hatchling collects the files of a wheel or an editable install."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Generate in place and list the results as build artifacts (they are git-ignored)."""
            del version
            for path in generate():
                relative = path.relative_to(ROOT.parent).as_posix()
                build_data["artifacts"].append(f"/{relative}")


if __name__ == "__main__":
    written = generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    print(f"wrote {len(written)} stub files")
