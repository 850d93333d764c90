"""One step of spreading activation over relations. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledger_svc.domain.model import Relation


@dataclass(frozen=True, slots=True)
class Activation:
    """How strongly a family is activated, and by which way."""

    family_id: str
    activation: float
    depth: int = 0
    via_relation: str = ""


def spread(frontier: Iterable[Activation], relations: Iterable[Relation], decay: float, depth: int) -> list[Activation]:
    """Return the neighbours of a frontier, in both directions; each by its strongest way, strongest first.

    Of equally strong ways the one with the smaller relation id counts.
    """
    strength = {activation.family_id: activation.activation for activation in frontier}
    best: dict[str, Activation] = {}
    for relation in sorted(relations, key=lambda r: r.relation_id):
        for here, there in ((relation.source_id, relation.target_id), (relation.target_id, relation.source_id)):
            given = strength.get(here)
            if given is None:
                continue
            received = given * decay
            if there not in best or received > best[there].activation:
                best[there] = Activation(there, received, depth, relation.relation_id)
    return sorted(best.values(), key=lambda a: (-a.activation, a.family_id))
