"""Importers of structured sources: they read on the client's side and send observations; ingest_svc does the rest.

What an observation of a structured source (``SOURCE_KIND_ADR``, ``SOURCE_KIND_PEP``) carries:

- ``locator``: ``git:{sha}:{path}`` or ``file:{path}``; with the text it tells a replay from news;
- ``text``: the document as of then, header included; ``title``, ``author`` and ``files`` as the source has them;
- ``occur_time``: when the source says that it became so; it becomes valid time;
- ``attributes``: facts of the source, all texts:

  ============== ======================================================================================
  identity_key   natural key of the document, e.g. ``adr/0007`` or ``pep/517``; always there
  path, sha      where it was
  subject        first line of the commit's message
  status         status as of then, where the text is a later one; wins over what the text says
  (header)       other header fields as of then, lower case with ``_``: ``resolution``, ``replaces``, ``requires``...
                 Facts, nothing more: by themselves they make no relation
  removed        ``true``: the document was removed then; its validity ends
  relations      JSON list of ``{"kind", "source", "target", "rationale"}`` with identity keys as ends: relations that
                 the importer asserts, seen over the whole source. Comes with the last observations, when both ends
                 exist; such an observation changes no content
  ============== ======================================================================================
"""
