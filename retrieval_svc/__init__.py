"""Retrieval: candidates from the index, the last word from the ledger, and silence when neither carries an answer."""
