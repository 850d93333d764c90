"""Runs the command line."""

from __future__ import annotations

from dsearch.cli.app import build


def main() -> None:
    """Entry point of ``dsearch`` and ``python -m dsearch``."""
    build()(prog_name="dsearch")


if __name__ == "__main__":
    main()
