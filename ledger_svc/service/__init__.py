"""Decides what each call may do and see, one transaction each. Knows records and the store's port, no messages."""
