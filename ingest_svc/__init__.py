"""Ingest: sanitise what sources say, read candidates from it, judge them, propose them to the ledger."""
