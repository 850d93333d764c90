"""Translates between messages and the services. Knows no rule, no store."""
