"""The index: a projection of the ledger that finds candidates, and can be thrown away and filled again."""
