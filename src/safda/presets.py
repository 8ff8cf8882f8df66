"""The presets: what each changes in a plain :class:`~safda.recipe.Recipe`, knob by knob.

They are named for what they are: ``default`` what is used where nothing is said, for arrays as for pictures,
``fine-tune`` the same and then the whole network, ``paper-…`` to the letter of the equations, ``released`` what the
authors' code did, ``digits`` the embedded demonstration, and what trains a small network from scratch.
"""

from __future__ import annotations

from typing import Any

_RESNET50 = {  # the weights of every published table; timm's plain "resnet50" means others
    "network.backbone": "resnet50.tv_in1k",
    "network.pretrained": True,
}
_PAPER: dict[str, Any] = {**_RESNET50, "steps": 100_000, "checkpoint_every": 1000}
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
    "saf.weight": 0.3,
    "saf.eta.source": "beta",
    "pseudo_labels.mode": "evaluation",
    "pseudo_labels.temperature": 0.5,
    "pseudo_labels.distribution_alignment": 1.0,
    "pseudo_labels.propagation.neighbours": 0.2,
}

# Principal components make a step cheaper, and larger batches need fewer of them.
_QUICK: dict[str, Any] = {"steps": 1000, "batch": 64, "network.components": 256, "optimizer.lr": 0.01}
_SAF = {"saf.weight": 1.0}
_SHORT = {  # enough to see where a recipe leads
    **_QUICK,
    "steps": 500,
    "network.bottleneck_width": 256,
    "network.classifier_width": 256,
    "optimizer.weight_decay": 0.005,
}

#: The recipes that a choice is made of, each by what it changes in the one that is given. They differ as data differ:
#: in what lengths and scales of features mean, in what a domain's own statistics mean, in whether classes are as
#: frequent as each other, and in how far predictions and pseudo-labels can be trusted. The last one begins with what
#: the others say on average. With fewer, the first ones are tried.
CANDIDATES: dict[str, dict[str, Any]] = {
    "free": {**_SHORT, **_SAF, "network.bottleneck_width": 512, "optimizer.weight_decay": 0.02},
    "held": {**_SHORT, **_SAF, "pseudo_labels.hold": 0.3},
    "as-is": {**_SHORT, **_SAF, "network.features": "as-is", "network.norm": "joint"},
    "no-saf": {**_SHORT, "methods": ["mdd"]},
    "standardised": {**_SHORT, **_SAF, "network.features": "standardised"},
    "unaligned": {**_SHORT, **_SAF, "pseudo_labels.distribution_alignment": 0.0},
    "refined": {**_QUICK, **_SAF, "pseudo_labels.hold": 0.3},
}

#: Name → knobs by path.
PRESETS: dict[str, dict[str, Any]] = {
    "default": _DEFAULT,
    "fine-tune": {**_DEFAULT, "fine_tune.enabled": True},
    "paper-office31": _PAPER,
    "paper-office-home": {**_PAPER, "mdd.margin": 2.0},
    "paper-visda": {**_PAPER, "mdd.margin": 2.0},
    "released": {
        **_PAPER,
        "methods": ["mdd", "saf", "self_training"],
        "mdd.ramp": 100.0,
        "saf.ramp": 50.0,
        "saf.pairing": "reversed",
        "saf.label_scale": 2.0,
        "saf.eta.rectified": True,
        "pseudo_labels.kind": "hard",
    },
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
