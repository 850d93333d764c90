"""Runs the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``dsearch`` and ``python -m dsearch``."""
    try:
        # Here and not above: an interruption while this is read must show no traceback either.
        from dsearch.cli.app import build

        build()(prog_name="dsearch")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
