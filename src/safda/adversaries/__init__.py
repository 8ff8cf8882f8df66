"""Adversarial methods: one file each, one contract (:mod:`safda.adversaries.base`), one registry."""

from __future__ import annotations

from safda.adversaries.base import Adversary, AdversaryOutput, JointBatch, Site, reverse
from safda.adversaries.cdan import CDAN
from safda.adversaries.dann import DANN
from safda.adversaries.mdd import MDD
from safda.adversaries.none import NoAdversary

#: Name in a recipe → method. A method's knobs stand under the same name in ``recipe.ADVERSARIES``.
ADVERSARIES: dict[str, type[Adversary]] = {
    "mdd": MDD,
    "dann": DANN,
    "cdan": CDAN,
    "cdan+e": CDAN,
    "none": NoAdversary,
}

__all__ = [
    "ADVERSARIES",
    "CDAN",
    "DANN",
    "MDD",
    "Adversary",
    "AdversaryOutput",
    "JointBatch",
    "NoAdversary",
    "Site",
    "reverse",
]
