"""The presets: what each changes in a plain :class:`~safda.recipe.Recipe`, knob by knob.

They are named for what they are: ``default`` what is used where nothing is said, for arrays as for pictures,
``fine-tune`` the same and then the whole network, ``paper-…`` to the letter of the equations, ``released`` what the
authors' code did, ``…-frozen`` the same on frozen features, ``digits`` the embedded demonstration, and what trains a
small network from scratch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_RESNET50 = {  # the weights of every published table; timm's plain "resnet50" means others
    "network.backbone": "resnet50.tv_in1k",
    "network.pretrained": True,
}
_PAPER_STEPS = 100_000
_PAPER: dict[str, Any] = {**_RESNET50, "steps": _PAPER_STEPS, "checkpoint_every": 1000}
_RELEASED: dict[str, Any] = {
    **_PAPER,
    "methods": ["mdd", "saf", "self_training"],
    "mdd.ramp": 100.0,
    "saf.ramp": 50.0,
    "saf.pairing": "reversed",
    "saf.label_scale": 2.0,
    "saf.eta.rectified": True,
    "pseudo_labels.kind": "hard",
}
# Heads alone need fewer steps. The learning rate falls by each step, as the authors' does, however many there are: over
# a short run the whole of its fall would leave MDD half trained. `benchmarks/operating_point.py` draws what steps give.
_FROZEN: dict[str, Any] = {"steps": 3000, "network.frozen": True, "optimizer.decay_steps": _PAPER_STEPS}


class Candidate(NamedTuple):
    """One of the recipes that a choice is made of.

    Attributes:
        changes: knobs by path, where it differs from the recipe that is given.
        begins_with: whose answers its pseudo-labels begin with, on average, as far as they are there: candidates before
            it, and :data:`DISCRIMINANTS`.
        neighbours_trusted: whether it is tried only where neighbours can be trusted (:data:`TRUSTED_NEIGHBOURS`), or
            only where they cannot; None: in either case.
        is_member: whether others begin with its answers, and it is not taken itself.
        seed_offset: what its seed is above the recipe's: for another network of a recipe that is there already.
    """

    changes: dict[str, Any]
    begins_with: tuple[str, ...] = ("source-only",)
    neighbours_trusted: bool | None = None
    is_member: bool = False
    seed_offset: int = 0

    def suits(self, purity: float) -> bool:
        """Return whether it is tried where so many of the source's nearest neighbours are of one class."""
        return self.neighbours_trusted in (None, purity >= TRUSTED_NEIGHBOURS)


#: Neighbours can be trusted if in the source, whose labels are known, so many nearest ones are of one class. There
#: pseudo-labels may change at once, as the graph says; elsewhere better ones are sought, and kept.
TRUSTED_NEIGHBOURS = 0.8


#: Who answers beside candidates and is none itself → whether each domain loses its own mean before: the votes of
#: selective pseudo-labelling.
DISCRIMINANTS = {"selective": False, "selective-aligned": True}


# Principal components make a step cheaper, larger batches need fewer of them, and with less dropout MDD comes to its
# answers sooner. Who learns pseudo-labels needs more of it, not to learn them by heart.
_QUICK: dict[str, Any] = {
    "batch": 64,
    "network.components": 256,
    "network.dropout": 0.3,
    "optimizer.lr": 0.01,
    "optimizer.weight_decay": 0.005,
}
_SMALL: dict[str, Any] = {**_QUICK, "steps": 500, "network.bottleneck_width": 256, "network.classifier_width": 256}
_MDD: dict[str, Any] = {"methods": ["mdd"]}
# Where classes are many, more components tell them apart, and confusion must count for more than its authors have it;
# whatever makes a network less sure of its answers, such as dropout, weakens what it can do.
_FINE: dict[str, Any] = {**_QUICK, "network.components": 512}
_MCC: dict[str, Any] = {**_FINE, "methods": ["mcc"], "mcc.weight": 3.0, "network.dropout": 0.0, "steps": 800}
_SAF: dict[str, Any] = {"saf.weight": 1.0, "network.dropout": 0.5, "optimizer.weight_decay": 0.01}
# Where names may change, SAF must not fix them before MDD has had its say: it learns slowly, as the preset does, and
# its weight rises all along, to 1 at the end.
_FREE: dict[str, Any] = {"batch": 64, "network.components": 256, "saf.weight": 1.3, "saf.ramp": 1.0}
# Several answers on average are better than what any one classifier would make of them: they are kept all along, and
# since nothing drifts then, SAF needs no other method beside it. What is near is told by several scalings on average.
_KEPT: dict[str, Any] = {
    "methods": ["saf"],
    "saf.weight": 3.0,
    "pseudo_labels.hold": 1.0,
    "pseudo_labels.prior": "tempered",
    "pseudo_labels.propagation.alpha": 0.8,
    "pseudo_labels.propagation.features": "all",
}
# Members err differently with another seed, and their average less.
_MEMBER = Candidate(_MCC, is_member=True)
_AGAIN = 1000  # beyond the seeds that anybody goes through
_ROOTED: dict[str, Any] = {**_MCC, "network.features": "rooted"}
_JOINT: dict[str, Any] = {"network.features": "as-is", "network.norm": "joint"}
_ENSEMBLE = Candidate(
    {**_FINE, **_KEPT, "steps": 1000},
    begins_with=("mdd", "mcc", "mcc-again", "mcc-rooted", "mcc-rooted-again", *DISCRIMINANTS),
)
# Where neighbours can be trusted labels are learned in fewer steps, and with more they are learned by heart. Those that
# have come to rest on the graph need no more of it.
_SOON: dict[str, Any] = {**_ENSEMBLE.changes, "steps": 500}
_AT_REST: dict[str, Any] = {
    **_ENSEMBLE.changes,
    "steps": 600,
    "pseudo_labels.propagation.alpha": 0.1,
    "network.dropout": 0.5,
}

#: The recipes that a choice is made of, each by what it changes in the one that is given. MDD names the target's
#: clusters; SAF begins with those names, lets them propagate over the graph, and learns the clusters. They differ as
#: data differ: in whether neighbours may change names or those of several are kept, in whether each domain's own
#: statistics are a shift to be taken away or the mark of other classes, and in whether classes are as frequent as each
#: other. With fewer candidates, the first ones that suit the data are tried.
CANDIDATES: dict[str, Candidate] = {
    "mdd": Candidate({**_QUICK, **_MDD, "steps": 800}),
    "saf": Candidate({**_FREE, "steps": 1500}, begins_with=("mdd",), neighbours_trusted=True),
    "mdd-joint": Candidate({**_SMALL, **_MDD, **_JOINT}),
    "saf-joint": Candidate({**_SMALL, **_SAF, **_JOINT, "steps": 800}, begins_with=("mdd-joint",)),
    "saf-prior": Candidate(
        {**_SMALL, **_SAF, **_JOINT, "steps": 800, "pseudo_labels.prior": "initial"}, begins_with=("mdd-joint",)
    ),
    "mcc": _MEMBER,
    "mcc-again": _MEMBER._replace(seed_offset=_AGAIN, neighbours_trusted=False),
    "mcc-rooted": _MEMBER._replace(changes=_ROOTED),
    "mcc-rooted-again": _MEMBER._replace(changes=_ROOTED, seed_offset=_AGAIN, neighbours_trusted=False),
    "saf-ensemble": _ENSEMBLE._replace(neighbours_trusted=False),
    "ensemble": _ENSEMBLE._replace(changes=_SOON, neighbours_trusted=True, is_member=True),
    "saf-consensus": Candidate(_AT_REST, begins_with=("saf", "ensemble"), neighbours_trusted=True),
}

#: The knobs in which they differ.
VARIED = {path for candidate in CANDIDATES.values() for path in candidate.changes}

_DEFAULT: dict[str, Any] = {
    **_RESNET50,
    "steps": 2000,
    "network.frozen": True,
    "network.backbone_norm": "fixed",
    "network.crop_scale": 0.5,
    "network.features": "centred",
    "network.bottleneck_width": 512,
    "network.classifier_width": 512,
    "network.norm": "per-domain",
    "optimizer.lr": 0.005,
    "optimizer.decay": 2.0,
    "optimizer.weight_decay": 0.02,
    "choice.candidates": len(CANDIDATES),
    "saf.weight": 0.3,
    "saf.eta.source": "beta",
    "pseudo_labels.mode": "evaluation",
    "pseudo_labels.temperature": 0.5,
    "pseudo_labels.distribution_alignment": 1.0,
    "pseudo_labels.propagation.neighbours": 0.2,
}

#: Name → knobs by path.
PRESETS: dict[str, dict[str, Any]] = {
    "default": _DEFAULT,
    "fine-tune": {**_DEFAULT, "fine_tune.enabled": True},
    "paper-office31": _PAPER,
    "paper-office-home": {**_PAPER, "mdd.margin": 2.0},
    "paper-visda": {**_PAPER, "mdd.margin": 2.0},
    "paper-frozen": {**_PAPER, **_FROZEN},
    "released": _RELEASED,
    "released-frozen": {**_RELEASED, **_FROZEN, "ramp_steps": _PAPER_STEPS},
    "digits": {
        "steps": 1000,
        "checkpoint_every": 250,
        "network.bottleneck_width": 256,
        "network.classifier_width": 256,
        "optimizer.lr": 0.02,
        "optimizer.decay": 10.0,
        "optimizer.backbone_factor": 1.0,
        "saf.eta.width": 96,
        "saf.eta.ascend": True,
        "pseudo_labels.distribution_alignment": 1.0,
    },
}
