"""Resource names, as they appear in errors, audit entries and events."""

from __future__ import annotations


def project(project_id: str) -> str:
    """``projects/{project}``."""
    return f"projects/{project_id}"


def family(project_id: str, family_id: str) -> str:
    """``projects/{project}/families/{family}``."""
    return f"projects/{project_id}/families/{family_id}"


def revision(project_id: str, family_id: str, revision_id: str) -> str:
    """``projects/{project}/families/{family}/revisions/{revision}``."""
    return f"projects/{project_id}/families/{family_id}/revisions/{revision_id}"


def proposal(project_id: str, proposal_id: str) -> str:
    """``projects/{project}/proposals/{proposal}``."""
    return f"projects/{project_id}/proposals/{proposal_id}"


def evidence(project_id: str, evidence_id: str) -> str:
    """``projects/{project}/evidence/{evidence}``."""
    return f"projects/{project_id}/evidence/{evidence_id}"


def relation(project_id: str, relation_id: str) -> str:
    """``projects/{project}/relations/{relation}``."""
    return f"projects/{project_id}/relations/{relation_id}"


def observation(project_id: str, observation_id: str) -> str:
    """``projects/{project}/observations/{observation}``."""
    return f"projects/{project_id}/observations/{observation_id}"
