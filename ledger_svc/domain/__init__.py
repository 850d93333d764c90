"""The pure core of the ledger: records, rules and decisions. Imports nothing else of ours and does no input or output.

``model`` the words · ``canonical`` hashes · ``timeline`` the two axes of time · ``identity`` who is who · ``policy``
what is asked of a proposal · ``decide`` state in, ChangeSet out · ``audit`` the hash chain · ``diff`` history.
"""
