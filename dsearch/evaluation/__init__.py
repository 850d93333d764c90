"""Evaluation of ranking, governance and abstention on a data set of documents, events and questions."""
